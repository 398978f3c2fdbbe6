"""Launches to compile as candidates of their kernels' tiles have them."""

from collections.abc import Callable, Iterator
from functools import partial

from tests.kernels.cases import conv, conv_grad_weight, linear
from tests.support.offline import Case, nothing_compiled
from tvdnn.kernels.language.overrides import Configurations
from tvdnn.kernels.tuning.candidates import candidates

SAMPLES = (  # of the cases of launches by rule
    (conv, "forward, first layer bfloat16"),
    (conv, "forward, box bfloat16"),
    (conv, "forward, box, odd channels bfloat16"),
    (conv, "forward, shared rows float32"),
    (conv, "data gradient, shared rows bfloat16"),
    (conv, "pooled, box bfloat16"),
    (conv_grad_weight, "weight gradient, turned float32"),
    (conv_grad_weight, "weight gradient, samples bfloat16"),
    (linear, "bf16"),
    (linear, "ieee"),
)


def _by_candidates(launch: Callable[[], None]) -> None:
    """By the first candidate of everything that asks, and by the last."""
    by_rule = Configurations({})
    with nothing_compiled():  # what the rule chooses is a case of its own
        by_rule.around(launch)()
    for which in (0, -1):
        found = {key: candidates(asked) for key, asked in by_rule.asked.items()}
        table = {key: ways[which] for key, ways in found.items() if ways}
        Configurations(table).around(launch)()


def _cases() -> Iterator[Case]:
    for module, name in SAMPLES:
        case = next(case for case in module.CASES if case.name == name)
        yield Case(f"candidates of {name}", partial(_by_candidates, case.launch))


CASES = list(_cases())
