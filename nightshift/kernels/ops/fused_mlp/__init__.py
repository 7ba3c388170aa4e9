"""Llama's gated feed-forward block as one operation."""
