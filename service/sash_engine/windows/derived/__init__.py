"""Windows that are made from a window: rollups, cascades, views."""
