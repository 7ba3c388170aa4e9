"""Reference problems: one operation per file."""
