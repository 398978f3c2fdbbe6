"""Seconds of a schedule: simulated, bounded from below, and calibrated by measurements."""
