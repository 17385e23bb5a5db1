"""kvcli: what the KV cache of a language model costs in memory and time.

The package root holds nothing but the version, so that importing any room costs only that room.
"""

__version__ = "0.1.0"
