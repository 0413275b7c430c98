"""Durable windows: journal, checkpoints, recovery, exports, and the protocol of tiers."""
