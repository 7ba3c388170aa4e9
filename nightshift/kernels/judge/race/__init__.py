"""A candidate against its baselines, on paired times."""
