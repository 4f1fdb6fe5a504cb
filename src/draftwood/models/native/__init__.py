"""Llama-shaped models on CPUs: one C++ call runs all layers. Compiled once, with the compiler at hand."""
