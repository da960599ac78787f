"""Lists of the best items: their options."""
