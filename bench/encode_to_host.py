"""Coded sections on their way to the host beside convolutions: by copy engines, or straight.

    python -m bench.encode_to_host -o bench/results/codecs/to_host_h100.json

By the engine's way an encoder in the stream of the convolutions leaves a code on the device, and a
copy engine takes it to the host. By the straight way a kernel of few programs reads the section in
a stream of its own, and stores the code to pinned host memory itself. The convolutions are
persistent layers of VGG-16 in bf16. Both ways run with copies to the device beside, and without.
Bitmap codes have no encoder of few programs: the one for the device stores them, in full.

A row is a codec and a way: the rate at which codes come to the host while convolutions run, as a
share of what copy engines reach then; the time of the convolutions while codes leave throughout,
over their time alone, encoders in their stream included; and the time of all of the same work.
`left` programs of each convolution's grid are left out where kernels run beside.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final
from unittest.mock import patch

import torch
from torch import Tensor

from bench.cases.codec.bitmap import halved
from bench.cases.conv.conv2d import CASES as CONVOLUTIONS
from bench.cases.conv.layers import Layer
from bench.cases.operands import BF16, F32, U8, Operands
from bench.command_line import parser_of
from bench.environment import environment
from tvdnn.kernels.codec import bitmap, fp8, tf32, to_host
from tvdnn.kernels.conv import launch as conv_launch
from tvdnn.kernels.language.rounding import stored_reference
from tvdnn.units import MIB

LAYERS: Final = (Layer(112, 128, 128), Layer(56, 256, 256), Layer(28, 512, 512))
BATCH: Final = 64
TURNS: Final = 6  # of all layers, in a measurement
LONGER: Final = 8  # times as many, to be there for as long as the slowest encoder
SECTION_NBYTES: Final = 16 * MIB
DENSITY: Final = 0.5  # of the values that bitmap codes
REPEATS: Final = 5
SLEEP_CYCLES: Final = 25_000_000  # in which the host queues a measurement
FEW: Final = (2, 4, 6, 8, 16, 32)
MOST_LEFT: Final = 8
Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Row:
    """Coded sections that leave by one way."""

    codec: str
    way: str
    programs: int  # of the encoder to the host; 0: as many as of the encoder on the device
    left: int  # programs fewer of each convolution
    duplex: bool  # an engine copies to the device meanwhile
    gbytes_per_s: float  # of codes
    link_share: float  # of the rate of copy engines in the same conditions
    slowdown: float  # of the convolutions
    work_ms: float  # all convolutions, and as many codes as engines take meanwhile
    right: bool  # whether the codes on the host give the values


@dataclass(frozen=True, slots=True)
class Coded:
    """Sections, their codes on the device and on the host, and the two encoders."""

    name: str
    encode: Callable[[Tensor, Tensor], None]
    encode_to_host: Callable[..., None]
    decode: Callable[[Tensor, Tensor], None]
    raw: Tensor  # [sections, values]
    codes: Tensor
    host: Tensor
    programs: tuple[int, ...]

    @property
    def code_nbytes(self) -> int:
        return self.codes[0].numel()

    def is_right(self) -> bool:
        """Whether the first section's code on the host gives what its code on the device does."""
        decoded, expected = (torch.empty_like(self.raw[0]) for _ in range(2))
        self.encode(self.raw[0], self.codes[0])
        self.decode(self.codes[0], expected)
        self.decode(self.host[0].cuda(), decoded)
        return torch.equal(decoded, expected)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_default_device("cuda")
    rows = [asdict(row) for row in Bench().rows()]
    document = {"environment": environment(), "rows": rows}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


def coded_sections(sections: int) -> Iterator[Coded]:
    """The sections of each codec: as many of them, one at a time."""
    for name in ("tf32", "fp8", "bitmap"):
        o = Operands(torch.device("cuda"), torch.Generator("cuda").manual_seed(0))
        numel = SECTION_NBYTES // (4 if name == "tf32" else 2)
        if name == "tf32":
            nbytes, programs = tf32.tf32_nbytes(numel), FEW
            raw = stored_reference(o.randn(sections, numel).relu(), F32, "tf32")
            coders = tf32.tf32_encode, to_host.tf32_encode_to_host, tf32.tf32_decode
        elif name == "fp8":
            nbytes, programs = numel, FEW
            raw = o.randn(sections, numel, dtype=BF16)
            coders = fp8.fp8_encode, to_host.fp8_encode_to_host, fp8.fp8_decode
        else:
            nbytes = bitmap.bitmap_nbytes(numel, 2, int(DENSITY * numel))
            raw = halved(o, (sections * numel,), BF16).view(sections, numel)
            coders, programs = _with_counts(numel - int(DENSITY * numel)), (0,)
        codes = torch.empty(sections, nbytes, dtype=U8)
        host = torch.empty(sections, nbytes, dtype=U8, device="cpu", pin_memory=True)
        yield Coded(name, *coders, raw, codes, host, programs)
        del raw, codes, host


def _with_counts(spilled: int) -> tuple[Callable[..., None], ...]:
    """The bitmap encoders, each behind the clearing of a count, and the decoder."""
    count = torch.zeros(1, dtype=torch.int32)
    counts = count, torch.zeros_like(count)
    tail = torch.empty(2 * spilled, dtype=U8, device="cpu", pin_memory=True)

    def encode(raw: Tensor, head: Tensor) -> None:
        counts[0].zero_()
        bitmap.bitmap_encode(raw, head, tail, counts[0])

    def encode_to_host(raw: Tensor, head: Tensor, *, programs: int) -> None:
        assert programs == 0
        counts[1].zero_()
        bitmap.bitmap_encode(raw, head, tail, counts[1])

    def decode(head: Tensor, raw: Tensor) -> None:
        bitmap.bitmap_decode(head, tail, raw)

    return encode, encode_to_host, decode


class Bench:
    """Convolutions, and streams for copies each way."""

    def __init__(self) -> None:
        o = Operands(torch.device("cuda"), torch.Generator("cuda").manual_seed(1))
        make = CONVOLUTIONS[0].make
        self.convs = [make(o, (BATCH,), layer=layer, relu=True).run for layer in LAYERS]
        self.out, self.back = torch.cuda.Stream(), torch.cuda.Stream()
        shape = (8, SECTION_NBYTES)
        self.device = torch.empty(shape, dtype=U8)
        self.pinned = torch.ones(shape, dtype=U8, device="cpu", pin_memory=True)

    def rows(self) -> Iterator[Row]:
        conv_s = self._seconds(self._convolutions, ())[0]
        print(f"convolutions alone {1e3 * conv_s:.3f} ms", flush=True)
        sections = int(1.6 * conv_s * 55e9 / (SECTION_NBYTES / 2))
        for coded in coded_sections(sections):
            for duplex in (False, True):
                yield from self._rows_of(coded, conv_s, duplex=duplex)

    def _rows_of(self, coded: Coded, conv_s: float, *, duplex: bool) -> Iterator[Row]:
        copy = partial(self._copies, coded)
        back = [self._prefetches] if duplex else []
        engine = self._rate(coded, copy, back)
        # As many sections as engines take in the time of the convolutions, less one section.
        count = min(len(coded.raw), int(engine * conv_s / coded.code_nbytes) - 1)

        def row(way: str, programs: int, left: int, rate: float, slow: float, work: float) -> Row:
            made = Row(
                coded.name, way, programs, left, duplex, round(rate / 1e9, 2),
                round(rate / engine, 4), round(slow, 4), round(1e3 * work, 4), coded.is_right(),
            )  # fmt: skip
            print(made, flush=True)
            return made

        slow = self._slowdown(partial(self._encoding, coded, count), copy, back)
        yield row("engine", 0, 0, engine, slow, self._work(coded, count, None, back))
        for programs in coded.programs:
            straight = partial(self._straight, coded, programs)
            for left in {0: None, programs * (programs <= MOST_LEFT): None}:
                with convolutions_without(left):
                    rate = self._rate(coded, straight, back)
                    slow = self._slowdown(self._convolutions, straight, back)
                    work = self._work(coded, count, programs, back)
                yield row("straight", programs, left, rate, slow, work)

    def _convolutions(self) -> None:
        for _ in range(TURNS):
            for conv in self.convs:
                conv()

    def _encoding(self, coded: Coded, count: int) -> None:
        """The convolutions, with encoders of so many sections evenly among them."""
        done, launches = 0, TURNS * len(self.convs)
        for number in range(launches):
            self.convs[number % len(self.convs)]()
            while done < count * (number + 1) // launches:
                coded.encode(coded.raw[done], coded.codes[done])
                done += 1

    def _copies(self, coded: Coded) -> None:
        with torch.cuda.stream(self.out):
            for code, host in zip(coded.codes, coded.host, strict=True):
                host.copy_(code, non_blocking=True)

    def _straight(self, coded: Coded, programs: int) -> None:
        with torch.cuda.stream(self.out):
            for raw, host in zip(coded.raw, coded.host, strict=True):
                coded.encode_to_host(raw, host, programs=programs)

    def _prefetches(self) -> None:
        with torch.cuda.stream(self.back):
            for number in range(64):
                at = number % len(self.device)
                self.device[at].copy_(self.pinned[at], non_blocking=True)

    def _rate(self, coded: Coded, leave: Run, back: Sequence[Run]) -> float:
        """Bytes of codes a second, with convolutions beside for as long."""
        convs = lambda: [self._convolutions() for _ in range(LONGER)]  # noqa: E731
        leave_s = self._seconds(convs, (leave, *back))[1]
        return len(coded.raw) * coded.code_nbytes / leave_s

    def _slowdown(self, compute: Run, leave: Run, back: Sequence[Run]) -> float:
        """The time of the compute stream while sections leave, over that of convolutions alone."""
        beside = self._seconds(compute, (leave, *back))[0]
        return beside / self._seconds(self._convolutions, ())[0]

    def _work(self, coded: Coded, count: int, programs: int | None, back: Sequence[Run]) -> float:
        """Seconds of all convolutions and of so many codes, each behind one of the convolutions."""

        def run() -> None:
            done, launches = 0, TURNS * len(self.convs)
            compute = torch.cuda.current_stream()
            for number in range(launches):
                self.convs[number % len(self.convs)]()
                due = range(done, count * (number + 1) // launches)
                done = due.stop
                if programs is None:
                    for section in due:
                        coded.encode(coded.raw[section], coded.codes[section])
                self.out.wait_event(compute.record_event())
                with torch.cuda.stream(self.out):
                    for section in due:
                        host = coded.host[section]
                        if programs is None:
                            host.copy_(coded.codes[section], non_blocking=True)
                        else:
                            coded.encode_to_host(coded.raw[section], host, programs=programs)
            compute.wait_stream(self.out)

        return self._seconds(run, tuple(back))[0]

    def _seconds(self, compute: Run, beside: tuple[Run, ...]) -> tuple[float, float]:
        """Median seconds of the compute stream, and of the stream that leaves."""
        found = [self._once(compute, beside) for _ in range(REPEATS + 1)][1:]
        return median(each[0] for each in found), median(each[1] for each in found)

    def _once(self, compute: Run, beside: tuple[Run, ...]) -> tuple[float, float]:
        torch.cuda.synchronize()
        main = torch.cuda.current_stream()
        begin, end, left = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        torch.cuda._sleep(SLEEP_CYCLES)
        begin.record()
        for stream in (self.out, self.back):
            stream.wait_stream(main)
        for run in beside:
            run()
        left.record(self.out)  # before the host queues the launches, which takes longer
        compute()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3, begin.elapsed_time(left) / 1e3


@contextmanager
def convolutions_without(programs: int) -> Iterator[None]:
    """Convolutions with so many programs fewer."""
    count = conv_launch.num_sms() - programs
    with patch.object(conv_launch, "num_sms", lambda: count):
        yield


if __name__ == "__main__":
    main()
