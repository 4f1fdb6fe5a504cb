"""What is worth writing in C++: Llama-shaped models on CPUs, and searches through rows of a
vocabulary.
"""
