"""Matrix completion: fits to the known entries of a matrix."""
