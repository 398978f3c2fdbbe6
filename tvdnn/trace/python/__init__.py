"""Python around a traced forward: what it asks, reads, changes and returns beside its maps."""
