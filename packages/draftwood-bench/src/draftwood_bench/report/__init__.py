"""Page and tables of one or several benchmark runs."""
