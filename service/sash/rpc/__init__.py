"""The gRPC edge: `operations` are the methods, `server` serves them."""
