"""Public bug reports, put through the real collectors and the daemon: `python -m benchmarks.field`."""
