"""Floor 3, where the parts meet: lifecycle, root cause, gate, audit, console, CLI, store."""
