"""A process group that stands in for several processes, where there is one GPU.

Each sum is a kernel that holds as many programs as NCCL holds blocks, reads and writes the bucket
twice, as a ring does, and takes as long as the simulated link. A sum of equal parts of so many
processes is `size` times this one's. No byte leaves the GPU: a stand-in, no measurement of a link.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import globaltimer

from tvdnn.engine.process_group import Result, TrainingGroup
from tvdnn.planner.ir.costs import RANKS, Link, all_reduce_s

BLOCKS: Final = 24  # of NCCL's 16 to 32
WARPS: Final = 16
AT_ONCE: Final = 8192  # elements of a block


class StandIn(TrainingGroup):
    """The first of `size` processes that train on the same samples over a simulated link.

    Networks with SyncBatchNorm are not for it: the other processes' slots stay empty.
    """

    def __init__(self, size: int, link: Link) -> None:
        self.rank, self.size, self.link = 0, size, link
        self.sums_in_graphs = self.gathers = True

    def sum(self, values: Tensor) -> None:
        """The sum of `size` tensors like this one, in its place."""
        if not values.is_cuda:
            values.mul_(self.size)
            return
        seconds = all_reduce_s({RANKS: self.link}, self.size, values.nbytes)
        launch(values, self.size, seconds)

    def scatter(self, values: Tensor) -> None:
        """As `sum`, in half its time. The other ranges are multiplied, too."""
        self._half(values, self.size)

    def gather(self, values: Tensor) -> None:
        """The values as they are: the other ranges stay what they were."""
        self._half(values, 1)

    def _half(self, values: Tensor, factor: int) -> None:
        """One of the two halves of a sum."""
        if values.is_cuda:
            launch(values, factor, all_reduce_s({RANKS: self.link}, self.size, values.nbytes) / 2)
        else:
            values.mul_(factor)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Nothing: there is one process."""

    def from_first(self, make: Callable[[], Result]) -> Result:
        return make()

    def all_of(self, mine: Any) -> list[Any]:
        return [mine] * self.size


def launch(values: Tensor, factor: int, seconds: float) -> None:
    """Multiply a dense tensor by `factor` in its place, in no less than so many seconds."""
    nanoseconds = round(1e9 * seconds)
    is_paced = nanoseconds > 0
    sizes = (values.numel(), factor, nanoseconds)
    _paced_product_kernel[(BLOCKS,)](
        values, *sizes, AT_ONCE=AT_ONCE, IS_PACED=is_paced, num_warps=WARPS
    )


@triton.jit(do_not_specialize=["size", "factor", "nanoseconds"])
def _paced_product_kernel(
    values, size, factor, nanoseconds, AT_ONCE: tl.constexpr, IS_PACED: tl.constexpr
):
    """values *= factor, then once more through memory; a program waits after each of its parts."""
    begun = tl.zeros((), tl.int64)
    if IS_PACED:
        begun = globaltimer().to(tl.int64)
    parts = tl.cdiv(size, AT_ONCE * tl.num_programs(0))
    for number in range(2 * parts):
        part = number % parts * tl.num_programs(0) + tl.program_id(0)
        at = part.to(tl.int64) * AT_ONCE + tl.arange(0, AT_ONCE)
        read = tl.load(values + at, mask=at < size)
        product = read * tl.where(number < parts, factor, 1).to(read.dtype)
        tl.store(values + at, product, mask=at < size)
        if IS_PACED:
            due = begun + tl.cast(nanoseconds, tl.int64) * (number + 1) // (2 * parts)
            now = globaltimer().to(tl.int64)
            while now < due:
                now = globaltimer().to(tl.int64)
