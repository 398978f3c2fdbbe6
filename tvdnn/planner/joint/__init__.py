"""The joint planner: for every map and gap, whether it stays, is away or is made again."""
