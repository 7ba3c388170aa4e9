"""Goodput: every GPU-second of the fleet in one account, by job, team, node, cause and incident."""
