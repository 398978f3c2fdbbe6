"""From a Graph and its costs to a checked Schedule: plans, policies, lowering, the checker and the simulator."""
