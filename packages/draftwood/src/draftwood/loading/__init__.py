"""From a name to weights and a tokenizer: packages, folders, GGUF files, the Hugging Face hub."""
