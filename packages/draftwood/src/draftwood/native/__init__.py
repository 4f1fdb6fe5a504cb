"""What is worth writing in C++: models on CPUs, and searches through rows of a
vocabulary.
"""
