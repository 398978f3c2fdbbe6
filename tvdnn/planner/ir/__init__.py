"""Records that pass between the planner's stages: plan, schedule, timeline, costs, settings."""
