"""The host link, measured: each way alone, both at once, and beside launches."""

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Final, TypeAlias

import torch

from ..kernels.transfer import transfer
from ..planner.costs import Link
from ..planner.tuned import ENGINE, KERNEL
from ..units import KIB, MIB
from .replay import Call, in_turns_s, replayed_s

LONG_NBYTES: Final = 64 * MIB
SHORT_NBYTES: Final = MIB
LEAST_NBYTES: Final = 4 * KIB
COPIED_NBYTES: Final = 16 * MIB  # at once, beside launches
WAYS: Final = ((0,), (1,), (0, 1))  # to the host, to the device, both at once
LONGS, SHORTS, TURNS = 4, 64, 32
LONGER: Final = 1.5  # than launches that they run beside, copies are
LEAST_SHARE: Final = 0.1

Mover: TypeAlias = Callable[[torch.Tensor, torch.Tensor], None]


def measure_link(device: torch.device, copies: str = ENGINE) -> Link:
    """Rates of long pinned copies, one way and both at once, and what one more copy costs.

    `copies` tells what copies: the copy engines, or a kernel.
    """
    hosts = [torch.empty(LONG_NBYTES, dtype=torch.uint8).pin_memory() for _ in range(2)]
    devices = [torch.zeros(LONG_NBYTES, dtype=torch.uint8, device=device) for _ in range(2)]

    def copy(way: int, nbytes: int) -> Call:
        source, target = (devices[0], hosts[0]) if way == 0 else (hosts[1], devices[1])
        return partial(mover(copies), source[:nbytes], target[:nbytes])

    def seconds(ways: Sequence[int], nbytes: int, count: int) -> float:
        return replayed_s(device, *([copy(way, nbytes)] * count for way in ways)) / count

    def launch() -> None:
        flag.add_(1)

    flag = torch.zeros(1, device=device)
    launch()
    for way in (0, 1):
        copy(way, SHORT_NBYTES)()
    to_host, to_device, both = (LONG_NBYTES / seconds(ways, LONG_NBYTES, LONGS) for ways in WAYS)
    latency_s = max(0.0, seconds((0,), SHORT_NBYTES, SHORTS) - SHORT_NBYTES / to_host)
    least = copy(0, LEAST_NBYTES)
    apart_s = (replayed_s(device, [launch] * TURNS) + replayed_s(device, [least] * TURNS)) / TURNS
    wait_s = max(0.0, in_turns_s(device, (launch, least), TURNS) - apart_s) / 2
    return Link(to_host, to_device, both, both, latency_s, wait_s=wait_s)


def share_beside(
    launches: Sequence[Call], held: torch.Tensor, way: int, copies: str = ENGINE
) -> float:
    """Of what a way of the link takes alone, what it takes beside launches: all beside none.

    The bytes `held` on the device are copied.

    The copy engines read slowly what is on a busy device: VGG-16's forward pass leaves 38 of the 55
    GB/s to the host, ResNet-50's 41. To the device their backward passes leave all (H200,
    2026-11-22).
    """
    if not launches or not held.numel():
        return 1.0
    device, host = held.device, torch.empty(held.shape, dtype=torch.uint8).pin_memory()
    copy = partial(mover(copies), *((held, host) if way == 0 else (host, held)))
    copy()
    launches_s = replayed_s(device, launches)
    count = ceil(LONGER * launches_s / replayed_s(device, [copy]))
    lost_s = replayed_s(device, launches, [copy] * count) - replayed_s(device, [copy] * count)
    return min(1.0, max(LEAST_SHARE, 1.0 - lost_s / launches_s))


def mover(copies: str) -> Mover:
    """What copies from a tensor of bytes to another."""
    return transfer if copies == KERNEL else _by_engine


def _by_engine(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)
