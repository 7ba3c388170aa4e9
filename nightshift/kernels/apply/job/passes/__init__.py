"""Passes over compiled graphs: each is a `Pass` of `folds`, and rewrites one thing."""
