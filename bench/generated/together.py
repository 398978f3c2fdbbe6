"""Random networks trained by processes that have the same samples, to the bits of one alone.

    torchrun --nproc-per-node 2 -m bench.generated.together --seeds 0:100

Means over two or four processes with the same samples are exactly those of one. A network of one
input and one output is trained by a Trainer alone, by one in a group, and by one in shards, for
some steps and one of two parts. Parameters, buffers, optimizer state and losses must be the same.
The processes are started apart, so that Python's sets have other orders in each. The command ends
with status 1 where a network differs.
"""

import copy
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, distributed

import tvdnn
from bench.command_line import parser_of
from bench.generated.case import Case, data_of, load
from bench.generated.draw import drawn_from_seed
from tvdnn.errors import TvdnnError

WAYS: Final[tuple[dict[str, Any], ...]] = ({"process_group": "none"}, {}, {"shard": "optimizer"})
POLICIES: Final = ("keep", "auto", "vdnn-all")
OPTIMIZERS: Final = (
    tvdnn.optim.AdamW(1e-3),
    tvdnn.optim.SGD(1e-2, momentum=0.9, nesterov=True, weight_decay=1e-2),
)
STEPS: Final = 3
RANDOM: Final = re.compile("[dD]ropout|StochasticDepth")  # draws by the sample among those of all
SAME, DIFFERS, REFUSED, LEFT_OUT = "same", "differs", "refused", "left out"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", default="0:100", help="first:end, or several seeds by comma")
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = {seed: outcome(seed) for seed in seeds_of(seeds)}
    if distributed.get_rank() == 0:
        print(dict(Counter(found.values())))
        print("differ:", [seed for seed, each in found.items() if each == DIFFERS])
    distributed.destroy_process_group()
    sys.exit(DIFFERS in found.values())


def seeds_of(text: str) -> Iterator[int]:
    """The seeds of a range, or those between commas."""
    first, colon, end = text.partition(":")
    yield from range(int(first), int(end)) if colon else map(int, text.split(","))


def outcome(seed: int) -> str:
    """What becomes of the network of a seed. All processes find the same."""
    text = drawn_from_seed(seed).printed()
    if RANDOM.search(text):
        return LEFT_OUT
    case = load(text)
    inputs = [x for x, *_ in data_of(case, seed, steps=STEPS, rounded=False).inputs]
    result = None
    if len(case.shapes) == 1:
        with torch.no_grad():
            result = case.make_torch()(inputs[0])
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return LEFT_OUT
    try:
        alone, *others = (_trained(case, seed, inputs, result, way) for way in WAYS)
    except TvdnnError:  # which all processes raise: networks that a trainer refuses, and statistics
        return REFUSED  # of several processes, which none alone has
    return SAME if all(are_alike(alone, each) for each in others) else DIFFERS


def _trained(
    case: Case, seed: int, inputs: list[Tensor], result: Tensor, way: dict[str, Any]
) -> list[Any]:
    """The losses, and all that outlives the steps."""
    torch.manual_seed(seed)
    how: dict[str, Any] = {"process_group": distributed.group.WORLD, "bucket_size": 2000}
    how |= {"policy": POLICIES[seed % 3], "optimizer": OPTIMIZERS[seed % 2], "chunk_size": 3000}
    trainer = tvdnn.Trainer(case.make(), inputs[0], loss="mse", dtype="fp32", **(how | way))
    targets = torch.ones_like(result)
    losses = [trainer.step(x, targets).clone() for x in inputs]
    if len(result) % 2 == 0:
        losses.append(trainer.step(inputs[0], targets, accumulate=2).clone())
    state = copy.deepcopy(trainer.state_dict())
    trainer.close()
    return [losses, state]


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
