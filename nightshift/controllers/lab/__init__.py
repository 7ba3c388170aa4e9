"""Training and simulation: learned policies, what-if fleets, bounds. No daemon path imports it."""
