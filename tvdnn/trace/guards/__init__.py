"""Guards: the conditions of a trace, which each later step checks."""
