"""Every protocol, and the frozen dataclasses that the two sides of it exchange."""
