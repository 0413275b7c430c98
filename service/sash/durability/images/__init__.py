"""Images of windows in a tier: checkpoints, manifests, blocks."""
