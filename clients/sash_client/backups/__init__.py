"""Windows as files, of one service or between two."""
