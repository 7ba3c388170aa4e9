"""What a Kubernetes API server says: nodes, pods, events. Reads only."""
