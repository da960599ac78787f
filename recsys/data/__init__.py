"""Ratings, ids, frames and sparse matrices: the data that models are fitted to."""
