"""`tvdnn trace`: one training step, predicted or measured, as a trace for a viewer or a figure."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from ..experiment.measure import measured, planned_on, present_device
from ..experiment.progress import StageReport
from ..experiment.request import (
    Request,
    as_tuned,
    chosen,
    make_graph,
    make_problem,
    make_request,
    parse_policies,
    random_labelled,
)
from ..experiment.simulate_request import Outcome, simulated
from ..planner.ir.costs import Roofline
from ..planner.ir.hardware import load
from ..planner.ir.schedule import Schedule
from ..planner.ir.timeline import Timeline
from ..planner.make import Problem
from ..planner.timing.calibrate import compare
from ..report import figures
from ..report.tables import drift_table, rows_table, subject
from ..report.traces import chrome_trace
from ..units import Limit, parse_limit
from .options import (
    Batch,
    Budget,
    ChunkSize,
    Dtype,
    HostBudget,
    ImageSize,
    Net,
    Policy,
    Profile,
    output_option,
)
from .output import fail, messages, show, stages, write_json
from .plan import DEFAULT_PROFILE

JSON = ".json"
STEPS = 3


def trace(
    net: Net,
    output: Annotated[
        Path,
        output_option("FILE.json for ui.perfetto.dev, FILE.png or FILE.svg for a figure.", JSON),
    ],
    batch: Batch = 128,
    image_size: ImageSize = None,
    dtype: Dtype = None,
    policy: Policy = None,
    budget: Budget = None,
    host_budget: HostBudget = None,
    chunk_size: ChunkSize = None,
    hardware: Profile = None,
) -> None:
    """Trace one step: when each launch and copy runs, and what the device holds meanwhile.

    Measured on the GPU, beside what was predicted of the ops that missed it most; simulated with
    --hardware, and on the H200's profile where there is no GPU.
    """
    request = make_request(net, batch, image_size, dtype or "bf16", chunk_size, host_budget)
    limit, measures = parse_limit(budget), hardware is None and torch.cuda.is_available()
    profile = load(hardware or DEFAULT_PROFILE)
    memory = profile.memory_nbytes if budget is None else None
    costs = Roofline(profile, request.dtype)
    machine = planned_on(torch.device("cuda")) if measures else costs.hardware
    request = as_tuned(request, machine)
    policy = policy or chosen(request, None, limit).policy
    parse_policies(policy)
    with stages(messages(), f"{net}({batch})") as report:
        if measures:
            found = _measured(request, policy, limit, report)
        else:
            problem = make_problem(request, costs)
            found = simulated(request, problem, policy, limit, report, memory_nbytes=memory)
    show(rows_table([found.row]), json_file=None)
    if found.schedule is None or found.timeline is None:
        raise typer.Exit(fail(found.row.reason))
    if found.predicted_by is not None:
        drift = compare(found.schedule, found.predicted_by, found.timeline)
        show(drift_table(drift), json_file=None)
    _write(output, found.schedule, found.timeline, f"{subject(found.row)}, {policy}")


def _measured(request: Request, policy: str, budget: Limit, report: StageReport) -> Outcome:
    device = present_device(None)
    batch = random_labelled(request, make_graph(request, policy, report), device.device)
    found = measured(request, device, policy, budget, [batch] * STEPS, report)
    device.slab.close()
    return found.outcome


def _write(output: Path, schedule: Schedule, timeline: Timeline, title: str) -> None:
    if output.suffix == JSON:
        write_json(chrome_trace(schedule, timeline, title=title), str(output))
        return
    costs = Roofline(load(DEFAULT_PROFILE), schedule.graph.dtype)
    kept = Problem(schedule.graph, costs).schedule("keep")
    figures.draw(schedule, timeline, output, title=title, kept_nbytes=kept.peak_nbytes)
