"""Entries on their way in: batches, rows, panes, and the numbers of their producers."""
