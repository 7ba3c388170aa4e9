"""Training losses that diverge."""
