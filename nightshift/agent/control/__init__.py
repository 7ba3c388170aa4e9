"""Power and scheduling in the daemon: each turn observes, proposes, shields, acts and reads back."""
