"""Kernels of preflight as the judge reads them: each file is one candidate, whole, and holds nothing else."""
