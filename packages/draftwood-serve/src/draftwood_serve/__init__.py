"""A server that speaks OpenAI's API over one model: requests in, texts out, from one batch."""
