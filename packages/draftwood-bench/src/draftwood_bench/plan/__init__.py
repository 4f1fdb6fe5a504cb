"""What is measured: protocols, configurations, prompts, and the units of work they make."""
