"""Who may see, decide and approve what: one gate for repairs, kernels and policies."""
