"""From a Graph and costs to a checked Schedule: plans, policies, lowering, checker, simulator."""
