"""Find where a head's training and its decoding begin to differ."""
