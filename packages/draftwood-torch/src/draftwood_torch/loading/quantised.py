"""Ways to quantise weights that Transformers knows, by their names in a config.json."""

from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

METHODS = frozenset(AUTO_QUANTIZATION_CONFIG_MAPPING)
