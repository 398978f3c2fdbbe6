"""Plans of full-size networks, as `python -m bench.large_plans` last made them: near the optimum.

Planning them takes minutes. The rows tell what it takes and finds: the tests hold them to limits.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from bench import large_plans
from tvdnn.cli import bench
from tvdnn.ops.chunk_size import LEAST_CHUNK_SIZE

PATH = Path(large_plans.__file__).parent / "results" / "plans" / "large.json"
ROWS: list[dict[str, Any]] = json.loads(PATH.read_text())["rows"]


def row(net: str, policy: str) -> dict[str, Any]:
    return next(each for each in ROWS if (each["net"], each["policy"]) == (net, policy))


def test_every_case_has_its_row() -> None:
    cases = [(c.net, c.batch, c.dtype, c.policy, c.chunk_size) for c in large_plans.CASES]
    keys = ("net", "batch", "dtype", "policy", "chunk_size")
    assert [tuple(each[key] for key in keys) for each in ROWS] == cases
    for each, case in zip(ROWS, large_plans.CASES, strict=True):
        given = case.budget if case.budget > 1 else int(case.budget * each["kept_peak_bytes"])
        assert each["budget_bytes"] == given


@pytest.mark.parametrize("case", ROWS, ids=lambda case: f"{case['net']}-{case['policy']}")
def test_no_plan_passes_its_budget(case: dict[str, Any]) -> None:
    assert case["planned_peak_bytes"] <= case["budget_bytes"] < case["kept_peak_bytes"]
    assert case["predicted_s"] >= case["kept_s"]


def test_vgg16_at_half_its_memory() -> None:
    """Copies bind: little leaves but the bytes that must, and the step waits for them."""
    found = row("vgg16", "tvdnn-ilp")
    assert found["fragmentation"] < 0.02
    assert found["num_remade"] == 0
    assert 1 < found["offloaded_bytes"] / found["least_offloaded_bytes"] < 1.15
    assert found["gap"] < 0.08
    assert found["binds"] == "link"
    assert row("vgg16", "tvdnn-heuristic")["predicted_s"] < 1.05 * found["predicted_s"]


def test_vgg16_in_two_and_a_half_gigabytes() -> None:
    """The first maps are made again and the first pooled one leaves, for 8% of the time."""
    found = row("vgg16", "auto")
    assert found["num_remade"] == 3
    assert found["offloaded_bytes"] < 1e9
    assert found["predicted_s"] < 1.12 * found["kept_s"]
    assert round(found["kept_peak_bytes"] / 1e9, 1) == 6.2


def test_a_normalized_vgg16_in_a_third_of_its_memory() -> None:
    """Copies of maps that hardly fit take 104 ms, recompute takes 36 ms, and keep takes 28 ms."""
    found = row("vgg16_bn", "auto")
    assert found["predicted_s"] < 1.35 * found["kept_s"]
    assert found["num_remade"] > 0


def test_vgg16_moves_what_vdnn_moves() -> None:
    """The inputs of 13 convolutions move, under vdnn-all those of 5 max poolings too."""
    assert row("vgg16", "vdnn-conv")["offloaded_bytes"] == 4_649_910_272
    assert row("vgg16", "vdnn-all")["offloaded_bytes"] == 7_784_103_936


def test_the_main_job_of_bench_has_its_rows() -> None:
    net, batch, dtype = bench.HEADLINE
    assert bench.HEADLINE_CASES[0] == ("keep", None)
    for policy, budget in bench.HEADLINE_CASES[1:]:
        found = row(net, policy)
        assert (found["batch"], found["dtype"], found["budget_bytes"]) == (batch, dtype, budget)
        assert found["chunk_size"] == LEAST_CHUNK_SIZE


def test_vgg416_moves_what_vdnn_moves() -> None:
    assert row("vgg416", "vdnn-all")["offloaded_bytes"] > 60e9


def test_resnet50_where_copies_bind() -> None:
    """In a quarter of keep's peak no choice hides all copies. Few copies are left."""
    swapped, found = row("resnet50", "tvdnn-ilp"), row("resnet50", "auto")
    assert swapped["gap"] < 0.04
    assert found["budget_bytes"] < 0.3 * found["kept_peak_bytes"]
    assert found["predicted_s"] < 2 * found["kept_s"]


def test_googlenet_little_above_its_floor() -> None:
    """Maps leave again and again, and those that launches want side by side find places."""
    assert row("googlenet", "tvdnn-ilp")["gap"] < 0.13


def test_the_deepest_network_is_near_what_launches_or_copies_take() -> None:
    """The plan has 40 thousand steps. The heuristic's step is near the link's time alone."""
    found = row("resnet2500", "auto")
    assert found["predicted_s"] <= 1.25 * max(found["compute_s"], found["link_s"])
    swapped = row("resnet2500", "tvdnn-heuristic")
    assert swapped["predicted_s"] < 1.15 * 2 * swapped["link_s"]


PLAN_S = {
    ("vgg16", "tvdnn-ilp"): 10.0,
    ("vgg16", "auto"): 15.0,
    ("resnet50", "tvdnn-ilp"): 30.0,
    ("googlenet", "tvdnn-ilp"): 15.0,
    ("resnet2500", "auto"): 20.0,
    ("resnet2500", "tvdnn-heuristic"): 10.0,
    ("vgg416", "vdnn-all"): 5.0,
}


@pytest.mark.parametrize(("net", "policy"), PLAN_S, ids=lambda name: name)
def test_planning_took_no_longer_than(net: str, policy: str) -> None:
    """Seconds of planning and of simulating the plan, on an idle core."""
    found = row(net, policy)
    seconds = (found["plan_cpu_s"] + found["simulate_cpu_s"]) / found["core_slowness"]
    assert seconds < PLAN_S[net, policy]


@pytest.mark.parametrize(("stage", "most_s"), [("check", 4.0), ("simulate", 1.0)])
def test_forty_thousand_steps_took_no_longer_than(stage: str, most_s: float) -> None:
    for policy in ("auto", "tvdnn-heuristic"):
        found = row("resnet2500", policy)
        assert found["num_steps"] > 38_000
        assert found[f"{stage}_cpu_s"] / found["core_slowness"] < most_s
