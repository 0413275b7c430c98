"""Questions of a window: which keys and rows they mean, and what these answer."""
