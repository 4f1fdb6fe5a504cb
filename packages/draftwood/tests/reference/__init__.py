"""References: slow and simple forms, in Python, of what the library does in C++.

``merger`` and ``estimates`` merge candidates, ``sessions`` has the sources, and ``verifiers`` holds
exact acceptance probabilities.
"""
