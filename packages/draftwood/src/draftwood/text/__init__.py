"""Text in, text out.

A model with its tokenizer, prompts, streams, and the hook into Transformers.
"""
