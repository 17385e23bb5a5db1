"""How devices share a model: splits, ranks, and what each holds."""
