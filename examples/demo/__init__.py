"""Four simulated nodes that replay a recording of real telemetry and faults, and the daemon that watches them."""
