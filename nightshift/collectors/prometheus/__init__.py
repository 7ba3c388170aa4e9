"""What a Prometheus and its Alertmanager say, now and in the past."""
