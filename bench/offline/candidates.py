"""Launches to compile as candidates of their kernels' tiles have them."""

from collections.abc import Callable
from functools import partial

from bench.offline.cases import TUNED
from bench.offline.compiler import Case, nothing_compiled
from tvdnn.kernels.language.overrides import Configurations
from tvdnn.kernels.tuning.candidates import candidates


def _by_candidates(launch: Callable[[], None]) -> None:
    """Launch by the first candidates of all tiles, then by the last."""
    by_rule = Configurations({})
    with nothing_compiled():  # what the rule chooses is a case of its own
        by_rule.around(launch)()
    for which in (0, -1):
        found = {key: candidates(asked) for key, asked in by_rule.requests.items()}
        table = {key: ways[which] for key, ways in found.items() if ways}
        Configurations(table).around(launch)()


CASES = [Case(f"candidates of {case.name}", partial(_by_candidates, case.launch)) for case in TUNED]
