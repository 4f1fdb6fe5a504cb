"""Costs of forward passes on this machine, and the size of the tree that is worth its time."""
