"""Seconds of a schedule: simulated, bounded from below, and corrected by measurements."""
