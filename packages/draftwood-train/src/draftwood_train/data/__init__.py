"""What drafters are trained on: prompts, the target's own answers to them, and its states."""
