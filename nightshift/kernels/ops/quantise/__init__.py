"""Symmetric int8 quantisation by row, and its inverse."""
