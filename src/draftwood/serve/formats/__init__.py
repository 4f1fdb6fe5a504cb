"""What answers look like."""
