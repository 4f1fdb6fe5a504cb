"""Find out how much a model's hidden states tell about the tokens to come."""
