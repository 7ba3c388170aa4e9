"""Incidents as text, charts and pictures, for every channel alike."""
