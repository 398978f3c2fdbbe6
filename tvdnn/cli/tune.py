"""`tvdnn tune`: chunk sizes and kernels of a network, and how to plan it inside budgets."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from ..errors import InputError
from ..experiment.machines import DataSheet, PresentGpu
from ..experiment.measure import present_device
from ..experiment.processes import Processes
from ..experiment.progress import StageReport
from ..experiment.request import Request, make_request, network_of, parse_budgets
from ..experiment.trials import Machine
from ..experiment.tuner import CHUNK_SIZES, Tuner
from ..planner.ir.hardware import load
from ..report import figures
from ..report.tuning import CurvePoint, chunks_text, curve_table, results_table
from ..runtime.tuning_store import TuningStore
from ..units import Limit, parse_bytes
from .options import Batch, Dtype, HostBudget, ImageSize, JsonFile, Net, Profile, output_option
from .output import DONE, FAILED, messages, show, stages, write_json
from .plan import DEFAULT_PROFILE


def tune(
    net: Net,
    batch: Batch = 128,
    image_size: ImageSize = None,
    dtype: Dtype = None,
    budget: Annotated[
        str | None,
        typer.Option(help="Device bytes by comma: 6GiB,4GiB,min. None: chunk sizes alone."),
    ] = None,
    host_budget: HostBudget = None,
    chunk_sizes: Annotated[
        str | None, typer.Option(help="Sizes to try, by comma: 1MiB to 64MiB if not given.")
    ] = None,
    hardware: Profile = None,
    again: Annotated[bool, typer.Option("--again", help="Forget what was found before.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Show step time over chunk size.")
    ] = False,
    output: Annotated[
        Path | None, output_option("The same as a figure: FILE.png or FILE.svg.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Find chunk sizes and kernels for all budgets and policies, and for each how to plan and copy.

    Plans are simulated, and the best few are measured on the GPU, as are configurations of kernels;
    with --hardware, and where there is no GPU, nothing is measured. Each trial is kept at once: a
    run that was interrupted goes on where it stopped. From then on bench, plan, trace, train,
    Trainer and virtualize use what was found where nothing else is asked for.
    """
    request = make_request(net, batch, image_size, dtype or "bf16", None, host_budget)
    budgets = () if budget is None else parse_budgets(budget)
    sizes = CHUNK_SIZES if chunk_sizes is None else _sizes(chunk_sizes)
    console = messages()
    with (
        stages(console, f"{net}({batch})") as progress,
        closing(machine_for(hardware, progress)) as machine,
        closing(Processes()) as processes,
    ):
        record = TuningStore(machine.hardware, network_of(request), request.dtype)
        if again:
            record.forget()
        tuner = Tuner(request, machine, record, progress, processes)
        code = _tune(console, tuner, budgets, sizes)
    title = _title(request, machine)
    _show(tuner, title, json_file)
    points = tuple(tuner.curve(budgets))
    if report and points:
        show(curve_table(points, title=f"{title}: step over chunk size"), json_file=json_file)
    if output is not None and points:
        figures.draw_curve(points, output, title=title)
    write_json(_json(tuner, machine, points), json_file)
    raise typer.Exit(code)


def machine_for(hardware: str | None, report: StageReport) -> Machine:
    """The profile that is asked for, otherwise the present GPU, otherwise the default profile."""
    if hardware is None and torch.cuda.is_available():
        return PresentGpu(present_device(None), report)
    return DataSheet(load(hardware or DEFAULT_PROFILE))


def _tune(console: Console, tuner: Tuner, budgets: Sequence[Limit], sizes: Sequence[int]) -> int:
    try:
        tuner.tune(budgets, sizes)
    except KeyboardInterrupt:
        console.print(
            "interrupted: what was tried and settled is kept; the same command goes on from here"
        )
        return FAILED
    return DONE


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(parse_bytes(part.strip()) for part in text.split(","))
    if None in sizes:
        raise InputError(f"{text!r} are not chunk sizes; write for example 4MiB,16MiB")
    return tuple(size for size in sizes if size is not None)


def _title(request: Request, machine: Machine) -> str:
    way = "measured" if machine.measures else "simulated"
    size = f"{request.image_size}x{request.image_size}"
    return f"{request.net}({request.batch}) {size} {request.dtype}, {way} on {machine.hardware}"


def _show(tuner: Tuner, title: str, json_file: str | None) -> None:
    tuned = tuner.tuned
    if tuned.chunks is None:
        return
    note = f"Chunk sizes, for all policies and budgets: {chunks_text(tuned.chunks)}."
    if tuned.configurations is not None:
        note += f" Launches with configurations of their own: {len(tuned.configurations)}."
    show(results_table(tuple(tuner.stored()), title=title, note=note), json_file=json_file)


def _json(tuner: Tuner, machine: Machine, points: Sequence[CurvePoint]) -> dict[str, Any]:
    chunks = tuner.tuned.chunks
    return {
        "hardware": machine.hardware,
        "simulated": not machine.measures,
        "chunks": None if chunks is None else asdict(chunks),
        "configurations": tuner.tuned.configurations,
        "budgets": [asdict(stored) for stored in tuner.stored()],
        "curve": [asdict(point) for point in points],
    }
