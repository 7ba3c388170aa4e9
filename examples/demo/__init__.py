"""Four simulated nodes that replay a recording of real telemetry and faults, and the daemon that watches them."""

import os

# as `nightshift run` does, before numpy is loaded
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
