"""Models of ratings and of implicit feedback, one module per family."""
