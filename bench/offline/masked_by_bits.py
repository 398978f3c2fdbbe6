"""Launches of kernels that sign bits may mask, whose machine code the tests read."""

from bench.offline import cases

CASES = [case for case in cases.CASES if "bits=True" in case.name]
