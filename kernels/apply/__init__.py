"""Certified kernels in a user's job: one standalone file (`runtime.py` with the kernels written into it)."""
