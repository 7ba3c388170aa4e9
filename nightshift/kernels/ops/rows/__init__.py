"""Families of which each writes several row operations: norms, softmax, cross-entropy and their gradients."""
