"""Preflight: whether a node's GPUs compute right, and as fast as they used to, before work starts on them."""
