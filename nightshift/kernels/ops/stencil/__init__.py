"""Two-dimensional stencils over planes."""
