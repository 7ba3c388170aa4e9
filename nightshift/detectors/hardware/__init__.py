"""Faults that hardware or its driver reports: Xids, lost GPUs, links, clocks."""
