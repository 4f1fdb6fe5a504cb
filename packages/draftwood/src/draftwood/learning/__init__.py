"""Online speculative decoding: a head learns from its rejected drafts while nothing else runs."""
