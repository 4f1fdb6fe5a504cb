"""Curves of rules of collaboration: cost and quality as a knob turns."""
