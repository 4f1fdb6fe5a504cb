"""Layers that keep a running state, each as one scan over a tree."""
