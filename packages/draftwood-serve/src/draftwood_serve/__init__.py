"""OpenAI-compatible server over one model that answers all requests from one batch."""
