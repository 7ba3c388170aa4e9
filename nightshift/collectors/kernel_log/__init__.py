"""Kernel logs: this machine's and every node's, line by line into events."""
