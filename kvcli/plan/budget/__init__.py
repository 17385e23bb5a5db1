"""The memory budget of a device: what stands beside weights and cache, what engines set aside, and the pool that is left."""
