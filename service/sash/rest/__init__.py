"""The REST edge: `app` has the routes, `server` serves them."""
