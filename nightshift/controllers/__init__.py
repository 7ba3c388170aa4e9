"""Floor 2: Actions on the world, and what keeps them safe."""
