"""`tvdnn plan`: the decision for every feature map, with predicted time and memory."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from ..engine.process_group import is_sharded
from ..errors import InputError
from ..experiment.processes import Processes
from ..experiment.request import (
    Request,
    as_tuned,
    chosen,
    make_problem,
    make_request,
    parse_policies,
)
from ..experiment.simulate_request import Outcome, Summing, simulated, summing_of
from ..experiment.sweep import swept_rows
from ..planner.ir.costs import Costs, Hardware, Roofline
from ..planner.ir.hardware import load, over
from ..planner.policies import superneurons
from ..planner.rounding import rounding_policy
from ..report import figures
from ..report.charts import lanes_chart, memory_table
from ..report.maps import map_rows
from ..report.tables import ladder_table, maps_table, rows_table, subject, sweep_table
from ..units import parse_limit
from .options import (
    Allow,
    Batch,
    Budget,
    ChunkSize,
    Dtype,
    FileBudget,
    HostBudget,
    ImageSize,
    Interconnect,
    JsonFile,
    Net,
    Policy,
    Profile,
    Shard,
    World,
    output_option,
)
from .output import fail, messages, show, stages, write_json

DEFAULT_PROFILE, DEFAULT_LINK = "H200", "NVLink"


def plan(
    net: Net,
    batch: Batch = 128,
    image_size: ImageSize = None,
    dtype: Dtype = None,
    policy: Policy = None,
    allow: Allow = None,
    budget: Budget = None,
    host_budget: HostBudget = None,
    file_budget: FileBudget = None,
    chunk_size: ChunkSize = None,
    hardware: Profile = None,
    world: World = 1,
    link: Interconnect = None,
    shard: Shard = None,
    sweep: Annotated[
        int | None,
        typer.Option(help="Plan for so many budgets instead, from the floor to keep's peak."),
    ] = None,
    ladder: Annotated[
        bool,
        typer.Option(
            "--ladder",
            help="Show instead what each means of a policy (superneurons) does to the peak.",
        ),
    ] = False,
    output: Annotated[Path | None, output_option("With --sweep: FILE.png or FILE.svg.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Plan a training step on a hardware profile, without a GPU: the decision for every map.

    With --sweep the step times of policies, by comma, over budgets: a table and, with -o, a figure.
    With --ladder the least peaks with none of a policy's means, and with more and more of them.
    With --allow no gradient is measured: all codecs may round maps whose rounding is within it.
    With --world gradients are summed over so many processes, and what is exposed of that is shown.
    """
    limits = host_budget, file_budget, allow
    request = make_request(net, batch, image_size, dtype or "bf16", chunk_size, *limits)
    policy = policy if policy is not None else rounding_policy(None, request.allowed)
    limit, profile = parse_limit(budget), _machine(hardware, link)
    memory = profile.memory_nbytes if budget is None else None
    costs = Roofline(profile, request.dtype)
    request = _together(as_tuned(request, costs.hardware), world, link, shard, ladder or sweep)
    if ladder:
        if sweep is not None or output is not None or budget is not None:
            raise InputError("--ladder shows least peaks: leave out --budget, --sweep and -o")
        _ladder(request, costs, policy or superneurons.NAME, json_file)
        return
    policies = parse_policies(policy or chosen(request, None, limit).policy, request.allowed)
    if sweep is not None:
        _sweep(request, costs, policies, sweep, memory, output, json_file)
        return
    if len(policies) > 1 or output is not None:
        raise InputError("several policies, and -o, are for --sweep; plan shows one policy's maps")
    with stages(messages(), f"{net}({batch})") as report:
        problem = make_problem(request, costs)
        found = simulated(request, problem, policies[0], limit, report, memory_nbytes=memory)
    _show(found, summing_of(found, costs, request), json_file)
    if found.schedule is None:
        raise typer.Exit(fail(found.row.reason))


def _machine(hardware: str | None, link: str | None) -> Hardware:
    return over(load(hardware or DEFAULT_PROFILE), link or DEFAULT_LINK)


def _together(
    request: Request, world: int, link: str | None, shard: str | None, several: object
) -> Request:
    """The request of processes that train together, for one plan and not `several`."""
    request = replace(request, world=world, sharded=is_sharded(shard, world))
    if world > 1 and (several or request.file_budget != 0):
        raise InputError("--world shows one plan: leave out --ladder, --sweep and --file-budget")
    for option, given in (("--link", link is not None), ("--shard", request.sharded)):
        if given and request.world == 1:
            raise InputError(f"{option} is for several processes; give their number by --world")
    return request


def _sweep(
    request: Request,
    costs: Costs,
    policies: Sequence[str],
    count: int,
    memory: int | None,
    output: Path | None,
    json_file: str | None,
) -> None:
    with (
        stages(messages(), f"{request.net}({request.batch})") as report,
        closing(Processes()) as processes,
    ):
        rows = swept_rows(request, costs, policies, count, report, processes, memory_nbytes=memory)
    show(sweep_table(rows), json_file=json_file)
    write_json([row.to_json() for row in rows], json_file)
    if output is not None:
        figures.draw_sweep(rows, output, title=subject(rows[0]))


def _ladder(request: Request, costs: Costs, policy: str, json_file: str | None) -> None:
    with stages(messages(), f"{request.net}({request.batch})") as report:
        report("planning", 0.0)
        rungs = make_problem(request, costs).ladder(policy)
        report("planning", 1.0)
    size = f"{request.image_size}x{request.image_size}"
    title = f"least peaks of {policy}, {request.net}({request.batch}) {size} {request.dtype}"
    show(ladder_table(title, rungs), json_file=json_file)
    write_json([rung._asdict() for rung in rungs], json_file)


def _show(found: Outcome, summing: Summing | None, json_file: str | None) -> None:
    maps = () if found.schedule is None else map_rows(found.schedule)
    if found.schedule is not None and found.timeline is not None:
        made = found.schedule, found.timeline
        show(maps_table(maps), memory_table(*made), lanes_chart(*made), "", json_file=json_file)
    show(rows_table([found.row], note="Simulated: nothing was run."), json_file=json_file)
    if summing is not None:
        show(summing.text, json_file=json_file)
    data = {
        "row": found.row.to_json(),
        "maps": [row.to_json() for row in maps],
        "floor_bytes": found.row.floor_bytes,
    }
    write_json(data if summing is None else data | {"summing": asdict(summing)}, json_file)
