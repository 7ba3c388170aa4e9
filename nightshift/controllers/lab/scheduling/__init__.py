"""Training of queue policies, and a simulated cluster that runs traces."""
