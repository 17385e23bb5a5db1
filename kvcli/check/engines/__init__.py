"""Engines: a command line, its variables and its files become the settings of a deployment, one module an engine."""
