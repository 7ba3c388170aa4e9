"""Eviction policies of prefix caches, trained and judged on published traces of requests."""
