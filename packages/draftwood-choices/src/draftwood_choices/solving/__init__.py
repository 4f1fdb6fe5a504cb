"""Share of tasks that search solves, beside what it costs."""
