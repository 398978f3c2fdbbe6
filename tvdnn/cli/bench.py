"""`tvdnn bench`: a row for each policy and budget, measured here or simulated on a profile."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from ..errors import InputError
from ..experiment.measure import measured, planned_on, present_device
from ..experiment.request import (
    Request,
    as_tuned,
    make_graph,
    make_problem,
    make_request,
    parse_budgets,
    parse_policies,
    random_labelled,
)
from ..experiment.simulate_request import Outcome, simulated
from ..experiment.together import ONE, Together, is_launched, together
from ..planner.ir.costs import Roofline
from ..planner.ir.hardware import load
from ..planner.make import Problem
from ..planner.rounding import rounding_policy
from ..report.charts import lanes_chart
from ..report.rows import Row, against_keep
from ..report.tables import first_steps_table, rows_table
from ..units import GIB, Limit, format_bytes
from .digits import train_digits
from .options import (
    NET_HELP,
    Allow,
    Batch,
    ChunkSize,
    Dtype,
    HostBudget,
    ImageSize,
    JsonFile,
    Profile,
)
from .output import DONE, FAILED, messages, show, stages, write_json

Cases = Sequence[tuple[str, Limit]]

POLICIES = "keep,vdnn-all,vdnn-dyn"
HEADLINE = ("vgg16", 256, "bf16")
HEADLINE_CASES: Cases = (
    ("keep", None),
    ("vdnn-conv", 6 * GIB),
    ("vdnn-all", 6 * GIB),
    ("auto", 5 * GIB // 2),
)
HEADLINE_PROFILE = "H200"


@dataclass(frozen=True, slots=True)
class Way:
    """How rows are made: the number of steps, the kernels, and the profile of a simulation.

    With `feedback` plans follow the first measured steps. Rows are also written to `json_file`.
    Where `bounded`, what has no budget is planned inside the profile's memory.
    """

    steps: int
    kernels: str | None
    hardware: str | None
    feedback: bool
    json_file: str | None
    bounded: bool = True
    together: Together = ONE


def bench(
    net: Annotated[str | None, typer.Argument(help=f"{NET_HELP} None: the main job.")] = None,
    batch: Batch = 128,
    image_size: ImageSize = None,
    dtype: Dtype = None,
    policy: Annotated[
        str | None,
        typer.Option(help=f"Policies by comma; if not given {POLICIES}, with --allow auto."),
    ] = None,
    allow: Allow = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Device bytes by comma: 6GiB,min or none. Not given: a profile's."),
    ] = None,
    host_budget: HostBudget = None,
    chunk_size: ChunkSize = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each policy.")] = 20,
    kernels: Annotated[
        str | None,
        typer.Option(help="triton, or torch: references, outside the memory guarantee on a GPU."),
    ] = None,
    hardware: Profile = None,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Plan again by what the first steps took.")
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Train under each policy and budget, and compare time, memory and copies.

    Processes that torchrun starts train together, each on a batch; the first prints.

    Without NET the main job runs: VGG-16(256) in bf16 inside 6 GiB by vDNN's policies and inside
    2.5 GiB by auto. Where there is no GPU, LeNet-5 is trained on the CPU instead, and VGG-16
    simulated on the H200's profile.
    """
    console = messages()
    way = Way(steps, kernels, hardware, feedback, json_file)
    if net is None:
        if allow is not None:
            raise InputError(f"--allow {allow} is for a network: name one, as in tvdnn bench unet")
        if is_launched() and hardware is None and not torch.cuda.is_available():
            raise InputError("the main job of many processes needs GPUs: name a network")
        with together() as all_processes:
            rows = _main_job(console, replace(way, together=all_processes))
    else:
        default = "bf16" if torch.cuda.is_available() or hardware else "fp32"
        given = dtype or default, chunk_size, host_budget, None, allow
        request = make_request(net, batch, image_size, *given)
        policies = policy or rounding_policy(None, request.allowed) or POLICIES
        named = parse_policies(policies, request.allowed)
        cases = [(p, b) for b in parse_budgets(budget or "none") for p in named]
        way = replace(way, bounded=budget is None)
        with together() as all_processes:
            rows = _bench(console, request, cases, replace(way, together=all_processes))
    _explain(console, rows)
    _show(rows, json_file)
    raise typer.Exit(FAILED if all(row.infeasible for row in rows) else DONE)


def _main_job(console: Console, way: Way) -> list[Row]:
    net, batch, dtype = HEADLINE
    request = make_request(net, batch, None, dtype, None, None)
    if torch.cuda.is_available() or way.hardware is not None:
        return _bench(console, request, HEADLINE_CASES, way)
    console.print(
        "There is no GPU here. LeNet-5 is trained on this CPU through the whole engine; "
        f"VGG-16({batch}) is simulated on the profile of an {HEADLINE_PROFILE}."
    )
    return [
        *train_digits(console, way.kernels),
        *_bench(console, request, HEADLINE_CASES, replace(way, hardware=HEADLINE_PROFILE)),
    ]


def _bench(console: Console, request: Request, cases: Cases, way: Way) -> list[Row]:
    """The rows of all cases. The timeline of each is shown in small when it is known."""
    if way.hardware is None:
        outcomes = _measure(console, request, cases, way)
    else:
        profile = load(way.hardware)
        tuned, memory = as_tuned(request, profile.name), profile.memory_nbytes
        problem = make_problem(tuned, Roofline(profile, request.dtype))
        outcomes = _simulate(console, tuned, cases, problem, memory if way.bounded else None)
    rows = []
    for found in outcomes:
        rows.append(found.row)
        if found.schedule is not None and found.timeline is not None:
            chart = lanes_chart(found.schedule, found.timeline)
            show(f"a step of {_inside(found.row)}", chart, json_file=way.json_file)
    return list(against_keep(rows))


def _simulate(
    console: Console, request: Request, cases: Cases, problem: Problem, memory: int | None
) -> Iterator[Outcome]:
    for policy, budget in cases:
        with stages(console, policy) as report:
            found = simulated(request, problem, policy, budget, report, memory_nbytes=memory)
        yield found


def _measure(console: Console, request: Request, cases: Cases, way: Way) -> Iterator[Outcome]:
    device = present_device(way.kernels)
    request = as_tuned(request, planned_on(device.device))
    with stages(console, f"{request.net}({request.batch})") as report:
        graph = make_graph(request, "keep", report)
    batch = random_labelled(request, graph, device.device, seed=way.together.rank)
    batches = [batch] * (way.steps + 1)
    for policy, budget in cases:
        how: dict[str, Any] = {"feedback": way.feedback, "together": way.together}
        with stages(console, policy) as report:
            outcome = measured(request, device, policy, budget, batches, report, **how).outcome
        yield outcome
    device.slab.close()


def _inside(row: Row) -> str:
    budget = row.budget_bytes
    return (
        f"{row.policy} {'without a budget' if budget is None else f'inside {format_bytes(budget)}'}"
    )


def _explain(console: Console, rows: Sequence[Row]) -> None:
    """Print why rows are infeasible."""
    for row in rows:
        if row.reason is not None:
            console.print(f"{row.policy}: {row.reason}", style="yellow", markup=False)


def _show(rows: Sequence[Row], json_file: str | None) -> None:
    """Print a table for each subject among the rows, and write the rows as JSON."""
    subjects = itertools.groupby(rows, key=lambda row: (row.net, row.hardware, row.simulated))
    for _, group in subjects:
        part = tuple(group)
        tables = rows_table(part, note=_note(part[0])), first_steps_table(part)
        show(*filter(None, tables), json_file=json_file)
    write_json([row.to_json() for row in rows], json_file)


def _note(row: Row) -> str | None:
    if row.simulated:
        return "Simulated from a hardware profile: nothing was run."
    kernels = row.versions["kernels"]
    return f"kernels: {kernels}" if kernels else None
