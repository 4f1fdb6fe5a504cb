"""Networks of trained heads, and how PyTorch runs them."""
