"""Models of Llama's shape in PyTorch: on GPUs, and where no C++ compiler is."""
