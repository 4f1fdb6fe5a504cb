"""Networks of the heads that these methods draft with."""
