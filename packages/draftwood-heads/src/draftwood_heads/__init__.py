"""Trained drafters, a folder each: configuration, weights, and a card that says where from."""
