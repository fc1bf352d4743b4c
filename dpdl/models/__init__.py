"""What is known: models, and exact answers about them."""
