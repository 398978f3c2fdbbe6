"""Random networks trained by processes that have the same samples, to the bits of one alone.

    torchrun --nproc-per-node 2 -m bench.generated.together --seeds 0:100

Means over two or four processes with the same samples are exactly those of one. A network of one
input and one output is trained by a Trainer alone, by one in a group, and by one in shards, some
steps and one of two parts; any network by what virtualize returns, alone and inside
DistributedDataParallel. Parameters, buffers, optimizer state and losses must be the same. The
processes are started apart, so that Python's sets have other orders in each. The command ends with
status 1 where a network differs.
"""

import copy
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

import tvdnn
from bench.command_line import parser_of
from bench.generated.case import Case, Data, data_of, load
from bench.generated.draw import drawn_from_seed
from tvdnn.errors import TvdnnError
from tvdnn.experiment.together import together

WAYS: Final[tuple[dict[str, Any], ...]] = ({"process_group": "none"}, {}, {"shard": "optimizer"})
POLICIES: Final = ("keep", "auto", "vdnn-all")
OPTIMIZERS: Final = (
    tvdnn.optim.AdamW(1e-3),
    tvdnn.optim.SGD(1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
)
STEPS: Final = 3
BUCKET_NBYTES: Final = 2000
RANDOM: Final = re.compile("[dD]ropout|StochasticDepth")  # draws by the sample among those of all
OTHERS_STATISTICS: Final = "SyncBatchNorm"  # which no process alone has
SAME, DIFFERS, REFUSED, LEFT_OUT = "same", "differs", "refused", "left out"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:end, or several seeds by comma")
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with together() as processes:
        found = {seed: outcomes(seed) for seed in seeds_of(seeds)}
        if processes.rank == 0:
            for way in ("trainer", "virtualize"):
                print(way, dict(Counter(each[way] for each in found.values())))
    differ = [seed for seed, each in found.items() if DIFFERS in each.values()]
    sys.exit(f"differ: {differ}" if differ else 0)


def seeds_of(text: str) -> Iterator[int]:
    """The seeds of a range, or those between commas."""
    first, colon, end = text.partition(":")
    yield from range(int(first), int(end)) if colon else map(int, text.split(","))


def outcomes(seed: int) -> dict[str, str]:
    """By way, what becomes of the network of a seed. All processes find the same."""
    text = drawn_from_seed(seed).printed()
    if RANDOM.search(text) or OTHERS_STATISTICS in text:
        return dict.fromkeys(("trainer", "virtualize"), LEFT_OUT)
    case = load(text)
    try:
        data = data_of(case, seed, steps=STEPS, rounded=False)
    except (RuntimeError, ValueError):  # torch cannot run it, as where a lazy layer is left out
        return dict.fromkeys(("trainer", "virtualize"), LEFT_OUT)
    return {"trainer": _by_trainers(case, data), "virtualize": _by_virtualize(case, data)}


def _by_trainers(case: Case, data: Data) -> str:
    if len(case.shapes) > 1:
        return LEFT_OUT
    with torch.no_grad():
        result = case.make_torch()(*data.inputs[0])
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return LEFT_OUT
    return _outcome([partial(_trained, case, data, result, way) for way in WAYS])


def _by_virtualize(case: Case, data: Data) -> str:
    torch.manual_seed(data.seed)
    if not any(param.requires_grad for param in case.make_torch().parameters()):
        return LEFT_OUT
    return _outcome([partial(_in_a_loop, case, data, wraps=wraps) for wraps in (False, True)])


def _outcome(ways: list[Callable[[], Any]]) -> str:
    """Whether all ways leave the bits of the first, unless that is refused."""
    first, *others = ways
    try:
        alone = first()
    except TvdnnError:
        return REFUSED
    return SAME if all(are_alike(each(), alone) for each in others) else DIFFERS


def _trained(case: Case, data: Data, result: Tensor, way: dict[str, Any]) -> list[Any]:
    """The losses of a Trainer's steps, and all that outlives them."""
    inputs, targets = [x for (x,) in data.inputs], torch.ones_like(result)
    torch.manual_seed(data.seed)
    how: dict[str, Any] = {"process_group": distributed.group.WORLD, **_settings(data)}
    how |= {"bucket_size": BUCKET_NBYTES, "optimizer": OPTIMIZERS[data.seed % 2], "loss": "mse"}
    trainer = tvdnn.Trainer(case.make(), inputs[0], **(how | way))
    losses = [trainer.step(x, targets).clone() for x in inputs]
    if len(result) % 2 == 0:
        losses.append(trainer.step(inputs[0], targets, accumulate=2).clone())
    state = copy.deepcopy(trainer.state_dict())
    trainer.close()
    return [losses, state]


def _in_a_loop(case: Case, data: Data, *, wraps: bool) -> list[Any]:
    """The losses of a loop around what virtualize returns, and the state behind it."""
    torch.manual_seed(data.seed)
    net = case.make()
    virtual = tvdnn.virtualize(net, data.inputs[0], **_settings(data))
    called: nn.Module = virtual
    if wraps:
        how: dict[str, Any] = {"bucket_cap_mb": BUCKET_NBYTES / 1e6}
        called = DistributedDataParallel(virtual, find_unused_parameters=True, **how)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2, momentum=0.9)
    losses = []
    for inputs in data.inputs:
        optimizer.zero_grad()
        outputs = [each for each in tree_leaves(called(*inputs)) if isinstance(each, Tensor)]
        terms = [(y - 1).square().mean() for y in outputs if y.requires_grad]
        if terms:
            losses.append(torch.stack(terms).sum())
            losses[-1].backward()
            optimizer.step()
    state = copy.deepcopy(net.state_dict())
    virtual.close()
    return [[loss.detach() for loss in losses], state]


def _settings(data: Data) -> dict[str, Any]:
    return {"dtype": "fp32", "chunk_size": 3000, "policy": POLICIES[data.seed % 3]}


def are_alike(found: Any, expected: Any) -> bool:
    """Whether nested results have the same bits; NaN is NaN."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            are_alike(found[key], each) for key, each in expected.items()
        )
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(are_alike, found, expected))
    if isinstance(expected, Tensor):
        return torch.allclose(found, expected, rtol=0.0, atol=0.0, equal_nan=True)
    return bool(found == expected)


if __name__ == "__main__":
    main()
