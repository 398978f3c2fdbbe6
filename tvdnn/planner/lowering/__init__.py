"""Lowering: from a plan to a schedule with an order, addresses and waits."""
