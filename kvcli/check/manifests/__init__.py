"""Manifest readers: files to launches. One module a kind; the table of kinds is in `read`."""
