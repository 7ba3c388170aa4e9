"""From findings to incidents: which findings speak of one fault."""
