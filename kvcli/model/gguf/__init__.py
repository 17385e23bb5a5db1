"""GGUF files: headers, configs and tensors of every architecture."""
