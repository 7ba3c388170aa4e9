"""Data movement, exact to the bit."""
