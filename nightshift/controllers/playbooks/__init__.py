"""One mitigation per file."""
