"""The base of every process: clocks, memory, turns on the loop, metrics and log."""
