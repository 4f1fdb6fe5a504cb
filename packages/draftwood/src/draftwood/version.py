"""The version, in a file that packaging can read without importing the library."""

__version__ = "0.1.0"
