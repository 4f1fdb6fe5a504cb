"""Training data: prompts, the target's own answers to them, and its states."""
