"""Replayable incidents: what a rule, or a model, makes of them from the raw signals to the repaired cluster."""
