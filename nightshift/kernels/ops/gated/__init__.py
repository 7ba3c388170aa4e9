"""Gated activations: SwiGLU, its gradient, and GEGLU."""
