"""Pure arithmetic: what a model needs, what an engine stores, and the floors."""
