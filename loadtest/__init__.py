"""Load on both edges of a service, from locust users; ``python -m loadtest --help``."""
