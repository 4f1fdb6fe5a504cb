"""Commands of this package; their modules import what is heavy inside functions."""
