"""Train drafters: data that the target writes itself, one loop, and a recipe per network."""
