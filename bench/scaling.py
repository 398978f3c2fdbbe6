"""Steps of processes that train together on machines that nobody has here, simulated.

    python -m bench.scaling -o bench/results/plans/scaling.json

Each process has a GPU and a batch of its own. Launches take what an H200's data sheet says. A sum
of n bytes over p processes goes round a ring and takes 2 (p - 1) (latency + n / p / rate) seconds:
its bytes over one link stay below 2 n, and its messages grow with p. Sums run beside backward,
whose launches take longer meanwhile. What is exposed is the step less the same step whose sums take
no time. The efficiency is the step of one process alone, which updates as it goes, over that of
many.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.command_line import parser_of
from bench.environment import software
from bench.plain_rows import PlainTable
from tvdnn.experiment.request import make_problem, make_request
from tvdnn.experiment.simulate_request import simulated, summing_of
from tvdnn.planner.ir.costs import Roofline
from tvdnn.planner.ir.hardware import load, over
from tvdnn.units import MIB, format_bytes

NETS: Final = (("vgg16", 256), ("resnet50", 256))
DTYPE, POLICY, MACHINE = "bf16", "auto", "H200"
LINKS: Final = ("NVLink", "100GbE")
SIZES: Final = tuple(size * MIB for size in (1, 4, 25, 100))  # of buckets
WORLD, WORLDS = 8, (64, 256, 1024)
USUAL: Final = 25 * MIB
TABLE: Final = PlainTable(
    "Processes that train together, simulated",
    "plans/scaling.json",
    "Simulated on H200s by their data sheet: nothing was run. Each process has a GPU and a batch "
    "of its own. Sums of gradients go round a ring beside backward; trees, which libraries take "
    "for many processes, need fewer messages. Exposed is the step less the same step whose sums "
    "take no time. The efficiency is the step of one process alone over that of many.",
    (
        ("network", lambda row: f"{row['net']}({row['batch']})"),
        ("link", lambda row: str(row["link"])),
        ("processes", lambda row: f"{row['world']:,}"),
        ("bucket", lambda row: format_bytes(row["bucket_bytes"])),
        ("ms", lambda row: f"{1e3 * row['step_s']:.1f}"),
        ("sums ms", lambda row: f"{1e3 * row['summing_s']:.1f}"),
        ("exposed ms", lambda row: f"{1e3 * row['exposed_s']:.1f}"),
        ("samples/s", lambda row: f"{row['samples_per_s']:,.0f}"),
        ("efficiency", lambda row: f"{row['efficiency']:.2f}"),
    ),
)


def row_of(net: str, batch: int, link: str, world: int, bucket_nbytes: int) -> dict[str, Any]:
    """A simulated step of so many processes."""
    request = replace(make_request(net, batch, None, DTYPE, None, None), world=world)
    request = replace(request, bucket_nbytes=bucket_nbytes)
    costs = Roofline(over(load(MACHINE), link), DTYPE)
    found = simulated(request, make_problem(request, costs), POLICY, None, lambda *_: None)
    assert found.schedule is not None
    assert found.timeline is not None
    row = {"net": net, "batch": batch, "dtype": DTYPE, "policy": POLICY, "hardware": MACHINE}
    row |= {"link": link, "world": world, "bucket_bytes": bucket_nbytes}
    row |= {"step_s": found.timeline.step_s, "planned_peak_bytes": found.schedule.peak_nbytes}
    summing = summing_of(found, costs, request)
    if summing is not None:
        row |= {"summed_bytes": summing.summed_bytes, "summing_s": summing.summing_s}
        row |= {"exposed_s": summing.exposed_s, "samples_per_s": summing.samples_per_s}
    return row


def rows() -> Iterator[dict[str, Any]]:
    """All rows: eight processes by link and size of buckets, then more processes over Ethernet."""
    for net, batch in NETS:
        alone_s = row_of(net, batch, LINKS[0], 1, USUAL)["step_s"]
        cases = [(link, WORLD, size) for link in LINKS for size in SIZES]
        cases += [(LINKS[-1], world, USUAL) for world in WORLDS]
        for case in cases:
            row = row_of(net, batch, *case)
            yield {**row, "efficiency": alone_s / row["step_s"]}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    found = list[dict[str, Any]]()
    for row in rows():
        found.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    document = {"title": "Processes that train together", "simulated": True}
    document |= {"environment": software(), "rows": found}
    options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
