"""A store looked through from outside, and what can be saved of it."""
