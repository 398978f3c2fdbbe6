"""What planning passes on: plans, schedules, timelines, costs and settings, as data."""
