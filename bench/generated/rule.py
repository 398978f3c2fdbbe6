"""When a result counts as wrong. Every number of the rule stands here; a change needs a reason."""

from collections.abc import Mapping
from typing import Final

# The RMS error against float64, over the tensor's scale, may be this many times torch eager's in
# the same type, plus UNITS_OF_ROUNDING units of rounding of that type.
TIMES_EAGER: Final = 4.0
UNITS_OF_ROUNDING: Final = 16
EPS: Final[Mapping[str, float]] = {"fp32": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7}

# Where one run leaves a tensor beyond the bound, eager's error is the largest of EAGER_RUNS runs:
# its own, and others on inputs and weights moved by half a unit of rounding. One run is one draw:
# rounding decides by luck which ReLUs fall on the other side of zero, and a ReLU's effect is above
# any bound.
EAGER_RUNS: Final = 8

# A tensor is wrong where it is beyond the bound at this many of these data seeds.
DATA_SEEDS: Final = (0, 1, 2)
SEEDS_BEYOND: Final = 2

# The scale of a tensor is its RMS in float64. Where the terms of a tensor cancel, the RMS of the
# terms is its scale. Terms count as cancelled where the tensor's RMS is below this share of theirs.
CANCELLED: Final = 2.0**-4
# The terms are measured: float64 runs in which every result and every gradient of an operation is
# rounded at random to this relative precision, the statistics inside a normalization as well. The
# RMS of the difference that this makes, over the precision, is the terms' RMS.
NOISE: Final = 2.0**-30
NOISE_RUNS: Final = 2

# The median of ours over eager's error, over all tensors of a type, is at most this.
MEDIAN_RATIO: Final = 1.1
