"""How files of weights are called."""

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
