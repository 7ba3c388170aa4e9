"""Sums and maxima of rows."""
