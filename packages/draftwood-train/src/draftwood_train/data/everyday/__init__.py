"""Everyday requests of many kinds, from texts inside public packages."""
