"""What a model is: layer records, readers, presets and what the user typed."""
