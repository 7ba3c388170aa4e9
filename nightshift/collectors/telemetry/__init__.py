"""GPUs, hosts and servers: exporters' pages, NVML, and the names and units of every metric."""
