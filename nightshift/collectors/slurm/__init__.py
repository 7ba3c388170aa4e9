"""What a Slurm controller says: nodes, jobs, how jobs ended. Reads only."""

from __future__ import annotations

SLURM = "slurm"
STATES, CHANGES = f"{SLURM} state", f"{SLURM} changes"
"""Sources of the lines: what is wrong, and what people changed."""
OURS = "nightshift:"
"""A reason of ours begins so, and so does our mark in `Extra`."""
