"""Pictures that are drawn token by token, exactly and in fewer passes."""
