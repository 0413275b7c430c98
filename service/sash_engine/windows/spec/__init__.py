"""What a window is asked to be: its spec, read from text, checked, written back."""
