"""Which prefixes stay in a serving engine's KV cache: rules, a learned policy, its shield, and SGLang's hook."""
