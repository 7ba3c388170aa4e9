"""Root cause: numbered evidence, rules first, every claim re-evaluated by code."""
