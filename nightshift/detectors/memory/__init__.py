"""Memory that leaks."""
