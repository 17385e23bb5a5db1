"""Curves and bars of plans as numbers: what pictures draw."""
