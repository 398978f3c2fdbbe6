"""Every function of unary.py on ranges of channels, which its kernels read and write alike."""

from functools import partial

from tests.kernels.cases.unary import unary_of_ranges
from tests.offline import Case
from tvdnn.kernels.unary import FUNCTIONS

CASES = [Case(f"{name} of ranges", partial(unary_of_ranges, name)) for name in FUNCTIONS]
