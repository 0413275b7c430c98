"""What a journal keeps of a command, as columns."""
