"""An incident's life: diagnosed, planned, approved, acted on, confirmed, given back, removed."""
