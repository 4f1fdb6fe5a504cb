"""Lists of texts as models: exact marginals, enumerated distributions, prices in bits."""
