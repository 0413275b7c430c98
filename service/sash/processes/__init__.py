"""Several processes that serve one store: `supervisor` starts them, and `worker` is one of them."""
