"""OpenAI-compatible server over one model that answers all requests from one batch."""

import draftwood as draftwood  # lets old module paths forward
