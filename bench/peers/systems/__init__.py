"""One module for each system; its class `System` does the work by the system's usual client."""
