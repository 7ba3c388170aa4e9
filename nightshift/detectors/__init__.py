"""Floor 1: frames in, findings out; one file per method."""
