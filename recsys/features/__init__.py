"""Features of items and users: tables as sparse matrices."""
