"""Load on all edges of a service, from locust's users who check every answer; ``python -m loadtest --help``."""
