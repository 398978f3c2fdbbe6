"""Six cells of the table of ten networks at ten budgets, planned anew."""

import json

import pytest

from bench.planned_budgets import AUTO, BUDGETS, NETWORKS, budgets_between, rows_of

CELLS = (("alexnet", 5), ("alexnet", 7), ("alexnet", 8), ("unet", 8), ("vgg16", 6), ("vgg16_bn", 8))
OTHERS = ("tvdnn-heuristic", "vdnn-all")
NEAR = 1.1  # times the relaxed optimum, in nine of ten cells of the table


def test_budgets_are_even_from_the_least_to_what_keep_takes() -> None:
    found = budgets_between(1000, 10_000)
    assert len(found) == BUDGETS
    assert (found[0], found[-1]) == (2000, 10_000)
    assert budgets_between(5000, 10_000)[0] == 5750


@pytest.mark.parametrize(("net", "number"), CELLS)
def test_auto_is_the_fastest_and_near_the_optimum(net: str, number: int) -> None:
    known = json.loads(NETWORKS.read_text())
    network = next(each for each in known if each["net"] == net)
    (auto,) = rows_of(network, AUTO, [number])
    assert auto["planned_peak_bytes"] <= auto["budget_bytes"]
    assert auto["relaxed_optimum_s"] <= auto["predicted_s"] <= NEAR * auto["relaxed_optimum_s"]
    others = [row for other in OTHERS for row in rows_of(network, other, [number])]
    assert all(row["budget_bytes"] == auto["budget_bytes"] for row in others)
    fits = [row["predicted_s"] for row in others if "predicted_s" in row]
    assert fits
    assert auto["predicted_s"] <= min(fits)
