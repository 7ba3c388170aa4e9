"""The on-call engineer for GPU clusters."""
