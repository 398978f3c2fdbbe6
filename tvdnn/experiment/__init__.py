"""Experiments: a network planned, simulated, measured, swept over budgets or tuned."""
