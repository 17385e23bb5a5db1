"""Verdicts as text, JSON, annotations, JUnit, SARIF and Markdown. No clock, no network: the same report gives the same bytes."""
