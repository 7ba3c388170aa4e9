"""Softmax of rows and its gradient."""
