"""What a rule of collaboration costs, and what the text is worth: a curve for each knob."""
