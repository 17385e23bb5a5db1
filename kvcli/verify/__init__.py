"""The formula held against what the runtime really does."""
