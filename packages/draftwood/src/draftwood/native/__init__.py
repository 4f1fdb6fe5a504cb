"""C++ code and its ctypes: models on CPUs, and searches through rows of a vocabulary."""
