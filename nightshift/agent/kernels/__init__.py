"""Kernel searches in the daemon: what is worth one, and how it runs on the cluster."""
