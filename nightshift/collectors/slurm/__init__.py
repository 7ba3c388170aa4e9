"""What a Slurm controller says: nodes, jobs, how jobs ended. Reads only."""
