"""Detectors on what they were not fitted on, one module a kind; `benchmarks.detect_held_out` runs them."""
