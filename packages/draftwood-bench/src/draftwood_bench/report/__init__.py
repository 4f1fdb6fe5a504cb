"""What people look at: a page and tables of one or several benchmark runs."""
