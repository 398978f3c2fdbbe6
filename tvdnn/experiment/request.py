"""Requests: what a command was asked to plan or run, checked, and the graph of it."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from platform import python_version
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .. import __version__, models
from ..engine.build import check_trainable, chunks_of, training_settings
from ..engine.losses import losses_of
from ..errors import BudgetError, DeviceError, HostMemoryError, InputError, TvdnnError
from ..graph import ChunkSizes, Graph, GraphVariants, Network
from ..ops.builder import BUCKET_NBYTES, Ranks
from ..ops.chunk_size import default_chunk_size
from ..ops.expand import DTYPES, graph_variants
from ..optim import SGD
from ..planner.ir.budgets import NO_TIERS, TierBudgets
from ..planner.ir.costs import Costs
from ..planner.ir.settings import Choice, Requested, Tuned, choose
from ..planner.lowering.rounded_codes import lossy_forms
from ..planner.make import Problem
from ..planner.policies import policy_named
from ..planner.policies.auto import AUTO
from ..planner.rounding import first_forms, parse_allowed, rounding_policy
from ..report.rows import Case, Floor, Row, infeasible_row
from ..runtime.releases import installed
from ..runtime.tuning_store import find_tuned, has_records
from ..trace.trace import trace
from ..units import Limit, parse_bytes, parse_limit
from .data import random_batch
from .progress import StageReport

DRAWS = (Tensor.normal_, Tensor.uniform_)
OPTIMIZER = SGD(lr=1e-3, momentum=0.9)
REFUSALS = (BudgetError, HostMemoryError, DeviceError)  # no room here; other cases may have it
DRIVER_FILE = Path("/proc/driver/nvidia/version")


class Unfilled(TorchFunctionMode):
    """Fills no tensor with random numbers: without memory there is nothing to fill."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        return args[0] if func in DRAWS else func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True)
class Request:
    """A network, its batch and its numbers. `dtype` is "bf16", "tf32" or "fp32".

    Chunk sizes that were not asked for are `tuned`, or the default. What the host budget cannot
    hold goes to a file of at most `file_budget` bytes; of 0 bytes there is none. Plans of auto may
    round maps as long as gradients are wrong by no more than `allowed`.
    """

    net: str
    batch: int
    image_size: int
    dtype: str
    chunks: ChunkSizes | None
    host_budget: int | None
    file_budget: int | None = 0
    sized: bool = True
    tuned: Tuned | None = None
    allowed: float | None = None
    world: int = 1  # processes that train together, each on a batch like this
    bucket_nbytes: int = BUCKET_NBYTES  # of gradients that these sum at once
    sharded: bool = False  # whether each of them has a part of the optimizer's state

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape [C, H, W] of an image."""
        return models.image_shape(self.net)[0], self.image_size, self.image_size


def make_request(
    net: str,
    batch: int,
    image_size: int | None,
    dtype: str,
    chunk_size: str | None,
    host_budget: str | None,
    file_budget: str | None = None,
    allow: str | None = None,
) -> Request:
    """The request, with what was not given filled in. Raises InputError for what is not known."""
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}")
    return Request(
        net=net,
        batch=batch,
        image_size=image_size or models.image_size(net),
        dtype=dtype,
        chunks=chunks_of(chunk_size),
        host_budget=parse_bytes(host_budget),
        file_budget=0 if file_budget is None else parse_bytes(file_budget),
        sized=chunk_size is not None,
        allowed=parse_allowed(allow),
    )


def as_tuned(request: Request, hardware: str) -> Request:
    """The request with what tuning found for it on this machine, where nothing else was asked."""
    if not has_records(hardware):
        return request
    tuned = find_tuned(hardware, network_of(request), request.dtype)
    if tuned is None:
        return request
    chunks = None if request.sized else tuned.chunks
    return replace(request, tuned=tuned, chunks=chunks or request.chunks)


def chosen(request: Request, policy: str | None, budget: Limit) -> Choice:
    """How to plan and copy: by the policy, if one is asked for, and else as tuning found."""
    return choose(request.tuned, budget, Requested(policy))


def make_problem(request: Request, costs: Costs, limit: Limit = None) -> Problem:
    """How to plan a training step on a machine of these costs inside this budget."""
    file = request.file_budget
    tiers = NO_TIERS if file == 0 else TierBudgets.with_file(file)
    limits = limit, request.host_budget, tiers
    if request.allowed is None:
        return Problem(_traced_step(request), costs, *limits)
    graph = _traced_step(request).graph(policy_named(AUTO).rewrites(may_round=True))
    return Problem(graph, costs, *limits, lossy=first_forms(lossy_forms(graph, request.allowed)))


def make_graph(request: Request, policy: str, report: StageReport) -> Graph:
    """The graph of a training step as `policy` plans it, traced without memory."""
    report("tracing", 0.0)
    may_round = request.allowed is not None
    graph = _traced_step(request).graph(policy_named(policy).rewrites(may_round=may_round))
    report("tracing", 1.0)
    return graph


def _traced_step(request: Request) -> GraphVariants:
    return _variants(replace(request, tuned=None, allowed=None))


@cache
def _variants(request: Request) -> GraphVariants:
    network = network_of(request)
    losses = losses_of("cross_entropy", None, torch.device("meta")).each
    settings = training_settings(losses, OPTIMIZER, request.dtype, request.chunks, None)
    together = Ranks(request.world, request.bucket_nbytes, sharded=request.sharded)
    ranks = together if request.world > 1 else None
    settings = replace(settings, updates_last=request.file_budget != 0, ranks=ranks)
    return graph_variants(check_trainable(network, losses), settings)


def chunk_sizes(request: Request) -> ChunkSizes:
    """The chunk sizes of the request, or else the default of its network."""
    if request.chunks is not None:
        return request.chunks
    return ChunkSizes(default_chunk_size(network_of(request), DTYPES[request.dtype][0]))


def network_of(request: Request) -> Network:
    """The network as it is traced, without memory."""
    return _traced(request.net, request.batch, request.shape)


@cache
def _traced(name: str, batch: int, shape: tuple[int, int, int]) -> Network:
    with torch.device("meta"), Unfilled():
        net = models.by_name(name)
        return trace(net, (torch.empty(batch, *shape),), ordered=True)


def random_labelled(
    request: Request, graph: Graph, device: torch.device, *, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Images and labels as the graph's loss takes them: a class an image, or a pixel."""
    logits = graph.ops["loss"].inputs[0]
    _, *sides, classes = graph.network.values[logits].shape
    form = request.batch, request.shape, classes, device
    return random_batch(*form, sides=tuple(sides), seed=seed)


def make_case(
    request: Request,
    policy: str,
    budget: int | None,
    hardware: str,
    versions: Mapping[str, str | None],
) -> Case:
    """The subject of the row of one policy and budget."""
    return Case(
        net=request.net,
        batch=request.batch,
        image_size=request.image_size,
        dtype=request.dtype,
        policy=policy,
        budget_bytes=budget,
        chunk_size=chunk_sizes(request).default,
        hardware=hardware,
        versions=versions,
        tuned=request.tuned is not None and request.chunks == request.tuned.chunks,
    )


def parse_policies(text: str, allowed: float | None = None) -> tuple[str, ...]:
    """Policies by comma. Raises InputError for one that is not known, or rounds none as allowed."""
    policies = tuple(part.strip() for part in text.split(","))
    for policy in policies:
        policy_named(policy)
        rounding_policy(policy, allowed)
    return policies


def parse_budgets(text: str) -> tuple[Limit, ...]:
    """Budgets by comma."""
    return tuple(parse_limit(part.strip()) for part in text.split(","))


def refused_row(case: Case, problem: Problem, error: TvdnnError, *, simulated: bool) -> Row:
    """The row of a case that was refused with one of `REFUSALS`."""
    if isinstance(error, BudgetError):
        floor = Floor(error.floor_nbytes, error.step)
    else:
        floor = find_floor(problem, case.policy)
    return infeasible_row(
        case,
        floor,
        baseline_nbytes=problem.baseline_nbytes(case.policy),
        simulated=simulated,
        reason=str(error),
    )


def find_floor(problem: Problem, policy: str) -> Floor:
    """The least budget of a policy, and the step that sets it."""
    return Floor(*problem.floor(policy))


@cache
def software(kernels: str | None = None) -> Mapping[str, str | None]:
    """Versions of what runs, of the driver and the commit where they can be told."""
    return {
        "tvdnn": __version__,
        "python": python_version(),
        "torch": torch.__version__,
        "triton": installed("triton"),
        "cuda": torch.version.cuda,
        "driver": _driver(),
        "commit": _commit(),
        "kernels": kernels,
    }


def _driver() -> str | None:
    """The kernel driver's version, as its first line says it."""
    if not DRIVER_FILE.exists():
        return None
    words = DRIVER_FILE.read_text().splitlines()[0].split()
    return next((word for word in words if word.replace(".", "").isdigit()), None)


def _commit() -> str | None:
    """The checkout's commit, marked where files differ from it; None for an installed package."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def find_bound(problem: Problem, policy: str) -> float | None:
    """Seconds that no schedule by the means of the policy beats inside the budgets."""
    found = problem.bound(policy)
    return None if found is None else found.step_s
