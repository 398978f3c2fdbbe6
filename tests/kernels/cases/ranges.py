"""Every function of unary.py on ranges of channels, which its kernels read and write alike."""

from functools import partial

from tests.kernels.cases.unary import unary_of_ranges
from tests.support.offline import Case
from tvdnn.kernels.pointwise.unary import FUNCTIONS

CASES = [Case(f"{name} of ranges", partial(unary_of_ranges, name)) for name in FUNCTIONS]
