"""Search: propose answers, judge them, go on."""
