"""Rows of codecs: sections of a map larger than the L2 cache, a launch for each.

A step codes a map so. One kernel clears the counts of all codes of a step before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from bench.cases.case import Measured
from bench.cases.launch import Call, Launch, Peer
from bench.cases.operands import Operands, Shape
from tvdnn.kernels.copy.channels import zero_channels

MIB: Final = 1 << 20
# Sections, and bytes of each
SIZES: Final = ((16, 16 * MIB), (4, 64 * MIB))
# Makes the calls that encode a section, the second tensor, and decode it, given a count.
Maker = Callable[[Operands, Tensor, Tensor, Tensor], tuple[Call, Call]]


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec whose kernels are measured."""

    name: str
    values: Callable[[Operands, int, torch.dtype], Tensor]  # of all sections
    calls: Maker
    counts: bool = False  # whether encoding appends to a count that is cleared before
    title: str = ""  # of the values
    dtype: torch.dtype | None = None  # the one type that it codes

    def measured(self) -> tuple[list[Measured], list[Measured]]:
        """The rows of encoding and those of decoding."""
        encode, decode = self._rows("encode", self._encoding), self._rows("decode", self._decoding)
        return [*encode], [*decode]

    def _rows(self, verb: str, make: Callable[..., Launch]) -> Iterator[Measured]:
        for size in SIZES:
            title = f"{size[0]} sections of {size[1] // MIB} MiB{self.title}"
            yield Measured(
                f"{self.name}_{verb}", size, make=make, small=(3, 2592), set="codecs", title=title,
                peer="copies", typed=self.dtype is None,
            )  # fmt: skip

    def _encoding(self, o: Operands, size: Shape, dtype: torch.dtype = torch.bfloat16) -> Launch:
        raw, out, counts, calls = self._calls(o, size, dtype)

        def decoded() -> Tensor:
            for _, decode in calls:
                decode.run_reference()
            return out

        clear = [Call(zero_channels, (counts.view(1, -1),), {})] if self.counts else []
        encodes = (encode for encode, _ in calls)
        return Launch((*clear, *encodes), self._peer(raw, size, decoded), streams=True)

    def _decoding(self, o: Operands, size: Shape, dtype: torch.dtype = torch.bfloat16) -> Launch:
        raw, out, _, calls = self._calls(o, size, dtype)
        encodes, decodes = zip(*calls, strict=True)
        return Launch(decodes, self._peer(raw, size, lambda: out), before=encodes, streams=True)

    def _calls(
        self, o: Operands, size: Shape, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, list[tuple[Call, Call]]]:
        dtype = self.dtype or dtype
        sections, nbytes = size
        raw = self.values(o, sections * nbytes // dtype.itemsize, dtype)
        out, counts = torch.empty_like(raw), torch.zeros(sections, dtype=torch.int32).to(o.device)
        parts = zip(raw.chunk(sections), out.chunk(sections), counts.split(1), strict=True)
        return raw, out, counts, [self.calls(o, *each) for each in parts]

    def _peer(self, raw: Tensor, size: Shape, result: Callable[[], Tensor]) -> Peer:
        """Copies of the sections."""
        target = torch.empty_like(raw)

        def run() -> Tensor:
            for mine, theirs in zip(target.chunk(size[0]), raw.chunk(size[0]), strict=True):
                mine.copy_(theirs)
            return target

        return Peer(result, run, raw.double)
