"""How engines store a cache: one policy a file."""
