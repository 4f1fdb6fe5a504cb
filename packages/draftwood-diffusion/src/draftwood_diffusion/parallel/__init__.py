"""``draftwood bench parallel``: prices of writing in parallel."""
