"""Shards: the keys of one deployment, spread over several stores, and over processes."""
