"""The operations of a window: plans, which the clients perform."""
