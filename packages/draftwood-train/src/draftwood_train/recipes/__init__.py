"""What is trained how: one file per published drafter."""
