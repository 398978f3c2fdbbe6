"""The search for the maps whose rounding lets gradients be wrong by too much."""

from collections.abc import Mapping
from math import isnan, sqrt

import pytest
import torch
from torch import nn

from tvdnn.engine import training_graph
from tvdnn.engine.rounding_search import MOST_PROBES, RoundingSearch, disturbed

LIMIT = 0.1


def searched(
    own: Mapping[str, float], spread: Mapping[str, float], limit: float = LIMIT
) -> tuple[RoundingSearch, list[frozenset[str]]]:
    """A search among maps that disturb a weight each, and maps that disturb every parameter.

    Errors add up as roots of sums of squares. The maps are in the order of their names.
    """
    probed: list[frozenset[str]] = []
    weights = {name: frozenset({f"{name}.weight"}) for name in own}

    def errors_of(rounded: frozenset[str]) -> dict[str, float]:
        probed.append(rounded)
        shared = sqrt(sum(spread[name] ** 2 for name in rounded & spread.keys()))
        found = {f"{name}.weight": sqrt(shared**2 + (error if name in rounded else 0) ** 2)
                 for name, error in own.items()}  # fmt: skip
        return {**found, "first.weight": shared}

    search = RoundingSearch(errors_of, weights, limit)
    maps = sorted({*own, *spread})
    errors = errors_of(frozenset(maps))
    probed.clear()
    search.run(maps, errors)
    return search, probed


def test_one_step_judges_all_maps_that_disturb_one_weight_each() -> None:
    search, probed = searched({"a": 0.2, "b": 0.02, "c": 0.3, "d": 0.05}, {})
    assert search.dropped == {"a": (0.2, "a.weight"), "c": (0.3, "c.weight")}
    assert probed == [frozenset("abcd")]


def test_groups_over_the_limit_are_halved() -> None:
    """Of 32 maps one disturbs all: it is found in two steps a halving."""
    spread = {f"m{number:02}": 0.001 for number in range(32)} | {"m13": 0.4}
    search, probed = searched({}, spread)
    assert search.dropped.keys() == {"m13"}
    assert search.dropped["m13"][0] == pytest.approx(0.4, rel=1e-3)
    assert len(probed) <= 2 * 5


def test_what_stays_was_measured_together_and_is_within_the_limit() -> None:
    """Each of the maps is within the limit. One more beside those that stay would not be."""
    search, probed = searched({"a": 0.05}, {f"m{n}": 0.055 for n in range(6)})
    left = frozenset({"a", *(f"m{n}" for n in range(6))}) - search.dropped.keys()
    assert left in probed
    before, after = (sqrt(n * 0.055**2 + 0.05**2) for n in (len(left) - 1, len(left)))
    assert before <= LIMIT < after


def test_a_search_ends_after_some_steps_and_drops_what_it_has_not_judged() -> None:
    search, probed = searched({}, {f"m{number:03}": 0.2 for number in range(100)})
    assert len(probed) == search.probes == MOST_PROBES
    assert len(search.dropped) == 100
    assert any(isnan(error) for error, _ in search.dropped.values())


def test_an_error_that_is_no_number_is_over_the_limit() -> None:
    search, _ = searched({}, {"a": float("nan"), "b": 0.01})
    assert search.dropped.keys() == {"a"}


def test_where_no_map_alone_is_over_the_limit_a_search_still_drops_some() -> None:
    """Steps that are not reproduced could else go on for ever."""
    search = RoundingSearch(lambda rounded: {"w": 0.01}, {"a": frozenset("w")}, LIMIT)
    search.run(["a"], {"w": 0.5})
    assert search.dropped == {"a": (0.5, "w")}


def test_operands_of_weights_disturb_these_alone_and_inputs_of_normalizations_more() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.SiLU(), nn.Flatten(), nn.Linear(512, 4),
    )  # fmt: skip
    graph = training_graph(net, torch.empty(4, 3, 8, 8), fuse=True)
    found = disturbed(graph, ["input", "0", "2", "3"])
    assert found.keys() == {"input", "2"}
    assert "0.weight" in found["input"]
    assert "3.weight" in found["2"]
