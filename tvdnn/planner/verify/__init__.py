"""The checker: proofs that a schedule and its graph are right, apart from the planner's code."""
