"""What one caller can take of the service: memory, places, connections, and time on the event loop."""
