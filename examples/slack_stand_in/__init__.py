"""A stand-in for Slack on loopback, for tests and the demo: the documented behaviour of what Nightshift uses."""
