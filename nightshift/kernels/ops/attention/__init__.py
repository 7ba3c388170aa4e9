"""Causal attention and its gradients, heads first or positions first."""
