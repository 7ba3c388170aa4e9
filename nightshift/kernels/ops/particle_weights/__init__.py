"""The weight update of a particle filter."""
