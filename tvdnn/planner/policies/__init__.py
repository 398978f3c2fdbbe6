"""Policies, one file a system: each turns a graph into the plans that it would try, in order."""
