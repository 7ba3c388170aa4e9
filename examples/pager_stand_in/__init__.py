"""Stand-ins for PagerDuty and Opsgenie, written to their documentation, for tests and the demo."""
