"""GGUF mixes: the types that llama.cpp gives each tensor, and the bytes they take."""
