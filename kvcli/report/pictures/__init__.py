"""Pictures of plans: the only room that knows the drawing library. Loaded where a picture was asked for."""
