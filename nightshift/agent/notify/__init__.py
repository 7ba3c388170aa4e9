"""Where people are notified: Slack, PagerDuty, Opsgenie and Alertmanager."""
