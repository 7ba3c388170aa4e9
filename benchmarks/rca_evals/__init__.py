"""Incidents with their right causes, a scorer that reads free text, and what a language model makes of them."""
