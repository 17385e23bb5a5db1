"""Clocks, samples, memory counters and read kernels."""
