"""Every write to Kubernetes and NVML stands in this package, and nowhere else."""
