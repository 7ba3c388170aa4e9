"""Learned and plain control of GPUs' power, and the shield that no proposal passes unchecked."""
