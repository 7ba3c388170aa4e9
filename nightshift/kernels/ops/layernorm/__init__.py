"""Layer normalisation and its gradient."""
