"""What forward passes cost on this machine, and how large a tree is worth its time."""
