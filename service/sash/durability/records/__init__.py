"""Commands, and the records that a journal keeps of them."""
