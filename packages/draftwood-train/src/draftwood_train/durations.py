"""Tell how long something takes, in words."""


def duration(seconds: float) -> str:
    """Tell seconds with two digits or more: in seconds, minutes or hours."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5970 else f"{seconds / 3600:.1f} hours"
