"""The gradient of an embedding table."""
