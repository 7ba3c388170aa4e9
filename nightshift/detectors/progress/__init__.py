"""Runs that hang, stall or wait for one rank."""
