"""Models of ratings and of implicit feedback, one file per family."""
