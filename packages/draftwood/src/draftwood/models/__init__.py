"""Running a model over a tree."""
