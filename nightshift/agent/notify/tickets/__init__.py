"""Tickets for incidents in Jira, ServiceNow or any taker of webhooks: opened, updated, closed both ways."""
