"""Tracing: from a torch module to a Network."""
