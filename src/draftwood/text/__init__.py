"""Text in, text out: a model with its tokenizer, prompts, streams, and the hook into
Transformers."""
