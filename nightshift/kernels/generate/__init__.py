"""Generators of candidate kernels behind one protocol: templates, models, searches."""
