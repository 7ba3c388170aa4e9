"""Every write to Kubernetes and NVML is in this package, and nowhere else."""
