"""A report of plans as one HTML file that needs nothing else."""
