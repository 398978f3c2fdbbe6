"""virtualize: a network in the user's own loop, whose halves of a step run one schedule."""

from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..ops import Settings
from ..ops.expand import Mode
from ..planner.ir.costs import Costs
from ..runtime.compile_process import compiling_soon
from ..runtime.section_file import SectionFile
from ..units import parse_bytes
from .build import (
    ChunkSize,
    Progress,
    chunks_of,
    give_lazy_parameters,
    resolve_dtype,
    with_chunks,
    with_rewrites_for,
)
from .engine_request import (
    CHECK_EVERY,
    CPU,
    EngineRequest,
    is_sized,
    requested_choice,
    requested_memory,
    requested_rounding,
)
from .first_step import FirstStep
from .module_tensors import one_device
from .synchronized_group import synchronized_group
from .virtualized_module import Virtualized

SHARDED = ("FullyShardedDataParallel", "FSDPModule")


def virtualize(
    net: nn.Module,
    example_inputs: Tensor | tuple[Tensor, ...],
    *,
    budget: int | str | None = None,
    host_budget: int | str | None = None,
    file: str | Path | SectionFile | None = None,
    file_budget: int | str | None = None,
    peer_budget: int | str | None = None,
    policy: str | None = None,
    allow: str | None = None,
    lossy_check_every: int = CHECK_EVERY,
    dtype: str | None = None,
    chunk_size: ChunkSize = None,
    sections: int | None = None,
    lead: int | None = None,
    copies: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    reserve: int | str | None = None,
    opaque: bool = False,
    kernels: str | None = None,
    order_seed: int | None = None,
    delay_seed: int | None = None,
    costs: Costs | None = None,
    feedback: bool = True,
    clock: Costs | None = None,
    progress: Progress | None = None,
) -> Virtualized:
    """`net` as a module of the same parameters whose steps stay inside `budget` device bytes.

    - `example_inputs`: tensors [N, ...]. Other shapes are planned when they first appear.
    - `budget`: bytes of parameters, gradients, maps, workspaces, and the state of `optimizer` or
      `reserve` bytes for what the engine cannot see. "min" is the floor under `policy`.
    - `dtype`: "fp32", "tf32" or "bf16". Without it a call takes the type of an autocast region,
      else bf16 for bfloat16 parameters (with float32 copies), else what torch's switches allow.
    - `opaque`: torch's autograd runs, in float32, the nearest submodule around an unknown op that
      reads maps, makes one, draws no numbers and changes no buffers but batch statistics. Inputs
      are kept, and it runs again in backward. Torch's memory is counted, not held to the budget.
    - `allow`: as Trainer's, also for gradients of inputs. The first backward measures them, and one
      every `lossy_check_every` steps: it runs the step again by the gradients of the outputs, with
      exact and with rounded maps. Where one is over the limit, it returns exact gradients.
    - `chunk_size`, `lead`, `copies`, `feedback`, `host_budget`, `file`, `file_budget` and
      `peer_budget`: as Trainer's.

    Raises BudgetError with the floor for a budget below it, UnsupportedOpError for an unknown op.
    """
    began = FirstStep(progress)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    device = _made_ready(net, inputs, opaque, allow=allow, file=file)
    policy, rounding = requested_rounding(policy, allow, lossy_check_every)
    reserved = (parse_bytes(reserve) or 0) + _state_nbytes(net, optimizer) + _given_nbytes(net)
    settings = _settings(resolve_dtype(dtype, device), chunk_size, sections, reserved)
    settings = with_rewrites_for(settings, policy, may_round=allow is not None)
    fields = requested_memory(budget, host_budget, file, file_budget, peer_budget) | rounding
    fields |= {"choice": requested_choice(policy, lead, copies), "dtype": dtype, "opaque": opaque}
    fields |= {"sized": is_sized(chunk_size, sections), "device": device, "feedback": feedback}
    fields |= {"costs": costs, "clock": clock, "kernels": kernels, "progress": progress}
    fields |= {"order_seed": order_seed, "delay_seed": delay_seed, "first_step": began}
    with compiling_soon(device, kernels):
        return Virtualized(net, settings, EngineRequest(**fields)).prepare(*inputs)


def _made_ready(
    net: nn.Module, inputs: tuple[Tensor, ...], opaque: bool, **alone: object
) -> torch.device:
    """Check the network and give lazy layers their parameters; returns its device.

    A network without parameters computes where its first input lies, for a meta tensor on the CPU.
    The settings `alone` are for networks of one process.
    """
    _refuse_wrappers(net)
    given = [name for name, value in alone.items() if value is not None]
    if given and synchronized_group(net) is not None:
        raise InputError(
            f"{given[0]} is not supported where SyncBatchNorm normalizes over several processes;"
            " leave it out"
        )
    give_lazy_parameters(net, *inputs, opaque=opaque)
    x = inputs[0]
    return one_device(dict(net.named_parameters()), CPU if x.is_meta else x.device)


def _settings(dtype: str, chunk_size: ChunkSize, sections: int | None, reserve: int) -> Settings:
    settings = Settings(
        dtype=dtype,
        mode=Mode.AUTOGRAD,
        sections=sections,
        reserve=reserve,
    )
    return with_chunks(settings, chunks_of(chunk_size))


def _refuse_wrappers(net: nn.Module) -> None:
    for module in net.modules():
        bases = {base.__name__ for base in type(module).__mro__}
        if "DistributedDataParallel" in bases:
            raise InputError(
                "DistributedDataParallel lies inside what is virtualized; pass the module inside"
                " it, and give DistributedDataParallel what virtualize returns"
            )
        for name in bases.intersection(SHARDED):
            raise InputError(
                f"{name} is not supported; pass the module without it, and give"
                " DistributedDataParallel what virtualize returns"
            )


def _state_nbytes(net: nn.Module, optimizer: torch.optim.Optimizer | None) -> int:
    """Bytes of optimizer state: two tensors a parameter for Adam's kin, one for SGD's momentum."""
    if optimizer is None:
        return 0
    trained = sum(p.numel() * 4 for p in net.parameters() if p.requires_grad)
    if any("betas" in group for group in optimizer.param_groups):
        return 2 * trained
    return trained if any(group.get("momentum", 0) for group in optimizer.param_groups) else 0


def _given_nbytes(net: nn.Module) -> int:
    """Bytes of parameters that are not float32, beside the copies that are."""
    given = (param for param in net.parameters() if param.dtype != torch.float32)
    return sum(param.numel() * param.element_size() for param in given)
