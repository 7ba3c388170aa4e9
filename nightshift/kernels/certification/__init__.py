"""Certificates, and the registry of kernels that jobs may use."""
