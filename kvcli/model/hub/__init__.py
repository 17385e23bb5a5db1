"""Hub ids: configs and headers by range requests, cached."""
