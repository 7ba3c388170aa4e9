"""Floor 0: the outside world in, as frames, step series, log records and their sources' status."""
