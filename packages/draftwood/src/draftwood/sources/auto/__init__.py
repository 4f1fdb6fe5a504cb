"""Sources that ``auto`` asks with their defaults: each file holds one, and says its place."""
