"""Runnable examples; nothing below imports them."""
