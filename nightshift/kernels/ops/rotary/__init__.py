"""Rotary position embedding: pairs side by side, or half a width apart."""
