"""Guards: what a trace depends on, which each step asks for again."""
