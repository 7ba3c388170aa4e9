"""Certified kernels in a user's job: one standalone file, joined of `job/`, with the kernels written into it."""
