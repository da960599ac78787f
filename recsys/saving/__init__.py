"""Saved models, indexes and splits: directories of JSON and arrays, written atomically."""
