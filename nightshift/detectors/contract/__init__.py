"""The contract that every detector passes, and how detectors are scored."""
