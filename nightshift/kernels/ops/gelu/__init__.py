"""GELU and its gradient."""
