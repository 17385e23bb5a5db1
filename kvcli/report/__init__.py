"""Ledgers and records as text, CSV and Markdown."""
