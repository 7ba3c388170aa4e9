"""Kernels for any operation: its graph is cut into regions, each is written in Triton, torch does what is left."""
