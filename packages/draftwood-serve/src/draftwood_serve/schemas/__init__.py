"""Schemas of requests."""
