"""One module for each statement of the paper that can be put to a test; `bench/theorems.py` runs them."""
