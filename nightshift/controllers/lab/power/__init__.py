"""Training of power policies, and jobs under a power limit to compare controllers on."""
