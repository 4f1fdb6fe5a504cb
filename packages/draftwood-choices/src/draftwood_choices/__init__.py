"""Published ways to another text than the model's own.

draftwood finds them by this package's entry points.
"""
