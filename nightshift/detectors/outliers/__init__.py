"""GPUs that behave like no known workload."""
