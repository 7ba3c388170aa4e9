"""Where incidents are told besides Slack: PagerDuty, Opsgenie, Alertmanager. One of them pages, never two."""
