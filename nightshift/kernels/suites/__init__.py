"""Other people's tasks and models as problems: KernelBench's format, and a user's own model."""
