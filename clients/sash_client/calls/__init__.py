"""How calls are made: connections, retries, and the way to the owner of a key."""
