"""Rates of measured kernels: from their times, by the costs that the kernels themselves state.

    python -m bench.kernel_rates bench/results/kernels/*.json

computes the rates and roofline shares of files of rows anew and writes them there. Times stay.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from bench.cases.case import KernelCase, Measured, kernel_cases
from bench.cases.launch import Launch
from bench.cases.operands import Operands, Shape
from bench.command_line import parser_of
from bench.timing import DTYPES, Ceilings

MOST_SHARE: Final = 1.05  # of a roofline, whose ceilings are measured too


class Rates(NamedTuple):
    """The work of several launches, and the sum of the least seconds that each needs."""

    flops: float
    nbytes: float
    least_s: float

    def at(self, seconds: float) -> tuple[float, float, float]:
        """TFLOP/s, GB/s and the share of the roofline of work that took these seconds."""
        return self.flops / seconds / 1e12, self.nbytes / seconds / 1e9, self.least_s / seconds


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A row of the tables, and the case that it is of."""

    case: KernelCase
    measured: Measured

    @property
    def shape(self) -> str:
        return self.measured.shape

    def make(self, o: Operands, dtype: str, size: Shape = (), *, small: bool = False) -> Launch:
        """Its launch, by default of its own size, or of the size that tests take."""
        of = self.measured
        settings = {**of.settings, **(of.small_settings if small else {})}
        if of.typed:
            settings["dtype"] = DTYPES[dtype]
        make = of.make or self.case.make
        return make(o, (of.small if small else size or of.size), **settings)


def measured_cases() -> Iterator[MeasuredCase]:
    for case in kernel_cases():
        for measured in case.measured:
            yield MeasuredCase(case, measured)


def rates_of(launch: Launch, ceilings: Ceilings, dtype: str) -> Rates:
    """The rates of all calls together. Each call has a roofline of its own."""
    costs = launch.costs
    least_s = fsum(ceilings.least_s(*cost, dtype) for cost in costs)
    return Rates(sum(each.flops for each in costs), sum(each.nbytes for each in costs), least_s)


def recomputed(document: dict[str, Any]) -> dict[str, Any]:
    """Measured rows with rates that follow from their times."""
    cases = {
        (each.measured.set, each.measured.kernel, each.shape): each for each in measured_cases()
    }
    ceilings = Ceilings(**document["ceilings"])
    rows = []
    for row in document["rows"]:
        case = cases[row["set"], row["kernel"], row["shape"]]
        launch = case.make(Operands(torch.device("meta")), row["dtype"])
        rates = rates_of(launch, ceilings, row["dtype"])
        tflops, gbytes_per_s, share = rates.at(row["ms"] / 1e3)
        found = {"tflops": tflops, "gbytes_per_s": gbytes_per_s, "roofline_share": share}
        rows.append({**row, **found})
    return {**document, "rows": rows}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args().files:
        found = recomputed(json.loads(path.read_text()))
        path.write_text(json.dumps(found, indent=1) + "\n")
        worst = max(found["rows"], key=lambda row: row["roofline_share"])
        print(f"{path}: {worst['roofline_share']:.1%} {worst['kernel']} {worst['shape']}")


if __name__ == "__main__":
    main()
