"""Decides whether a candidate GPU kernel is correct and faster, without knowing or trusting its author."""
