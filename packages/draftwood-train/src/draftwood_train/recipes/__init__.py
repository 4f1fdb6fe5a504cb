"""Training recipes: one file per published drafter."""
