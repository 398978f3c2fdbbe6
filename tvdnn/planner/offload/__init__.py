"""Offload: which sections leave the device and when they return."""
