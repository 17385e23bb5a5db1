"""The built-in cached transformer."""
