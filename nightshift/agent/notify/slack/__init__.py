"""Slack: one message per incident, kept up to date; clicks go to the gate. Only this room imports Slack's SDK."""
