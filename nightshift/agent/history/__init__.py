"""What Nightshift would have found in the past of a Prometheus."""
