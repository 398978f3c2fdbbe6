"""`tvdnn plan`: what happens to every feature map, and the time and memory that it predicts."""

from typing import Annotated

import typer

from ..planner.costs import Roofline
from ..planner.hardware import load
from ..report.charts import lanes_chart, memory_table
from ..report.maps import map_rows
from ..report.tables import maps_table, rows_table
from ..units import parse_bytes
from .options import (
    NET_HELP,
    Batch,
    ChunkSize,
    Dtype,
    HostBudget,
    ImageSize,
    JsonFile,
    Policy,
    Profile,
)
from .output import fail, messages, show, stages, write_json
from .request import make_request, parse_policies
from .simulating import Simulated, simulated

DEFAULT_PROFILE = "H200"


def plan(
    net: Annotated[str, typer.Argument(help=NET_HELP)],
    batch: Batch = 128,
    image_size: ImageSize = None,
    dtype: Dtype = None,
    policy: Policy = "auto",
    budget: Annotated[str, typer.Option(help="Device bytes: 6GiB, ... or none.")] = "none",
    host_budget: HostBudget = None,
    chunk_size: ChunkSize = None,
    hardware: Profile = None,
    json_file: JsonFile = None,
) -> None:
    """Plan a training step on a hardware profile, without a GPU: the decision for every map."""
    request = make_request(net, batch, image_size, dtype or "bf16", chunk_size, host_budget)
    parse_policies(policy)
    limit = parse_bytes(budget)
    costs = Roofline(load(hardware or DEFAULT_PROFILE), request.dtype)
    with stages(messages(), f"{net}({batch})") as report:
        found = simulated(request, costs, policy, limit, report)
    _show(found, json_file)
    if found.schedule is None:
        raise typer.Exit(fail(found.row.reason))


def _show(found: Simulated, json_file: str | None) -> None:
    maps = () if found.schedule is None else map_rows(found.schedule)
    if found.schedule is not None and found.timeline is not None:
        made = found.schedule, found.timeline
        show(maps_table(maps), memory_table(*made), lanes_chart(*made), "", json_file=json_file)
    show(rows_table([found.row], note="Simulated: nothing was run."), json_file=json_file)
    data = {
        "row": found.row.to_json(),
        "maps": [row.to_json() for row in maps],
        "floor_bytes": found.row.floor_bytes,
    }
    write_json(data, json_file)
