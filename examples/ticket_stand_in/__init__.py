"""Ticket systems that refuse what the real ones refuse."""
