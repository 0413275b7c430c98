"""Keys and their entries: the directory of a window, in pages of small keys and forests of large ones."""
