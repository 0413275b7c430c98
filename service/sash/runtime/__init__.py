"""What every part of a process runs on: its clocks, memory, turns on the loop, metrics and log."""
