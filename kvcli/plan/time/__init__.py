"""Time: what a step moves at any context and batch, floors over a growing context, estimates, limits and cost."""
