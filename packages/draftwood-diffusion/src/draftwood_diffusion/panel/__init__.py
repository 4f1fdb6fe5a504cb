"""The page of a server that replays in which order tokens were fixed; read as files."""
