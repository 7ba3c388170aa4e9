"""Incidents, plans and the fleet as text, charts and pictures, for every channel alike."""
