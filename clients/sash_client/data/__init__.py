"""What people pass and get, converted to and from what travels."""
