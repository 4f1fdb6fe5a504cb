"""Load weights and tokenizers by name: packages, folders, GGUF files, the Hugging Face hub."""
