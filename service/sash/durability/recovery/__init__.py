"""Windows as they were: the newest images, and what the journal has after them."""
