"""How files of weights are called."""

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
SETTINGS = ("*.json", "*.jinja", "tokenizer*", "*.model", "vocab*", "merges*")
"""What else a model is read from."""
