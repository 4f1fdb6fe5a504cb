"""What was measured, on disk and in figures."""
