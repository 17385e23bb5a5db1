"""The commands: options to types, one call, one print."""
