"""Known models, and exact answers about them."""
