"""What requests may say."""
