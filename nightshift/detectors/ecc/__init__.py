"""Memory errors of GPUs: which cluster, and which foretell worse."""
