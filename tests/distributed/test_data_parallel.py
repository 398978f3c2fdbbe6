"""DistributedDataParallel around virtualized networks: what torch's own training gives."""

from typing import Any

import pytest
import torch

from tests.distributed import data_parallel_cases
from tests.distributed.states import error_of, most_beside
from tests.support.ranks import WORLD, Found

pytestmark = pytest.mark.slow
CASES = data_parallel_cases


@pytest.mark.parametrize("case", ["sgd", "adamw", "batch_norm"])
def test_training_is_as_accurate_as_torchs(ranks: list[Found], case: str) -> None:
    for found in ranks:
        ours, torchs, exact = (found[case][way]["state"] for way in ("ours", "torch", "exact"))
        assert error_of(ours, exact) <= most_beside(error_of(torchs, exact))


@pytest.mark.parametrize("case", ["sgd", "adamw"])
def test_all_ranks_hold_the_same_parameters(ranks: list[Found], case: str) -> None:
    first, *others = (found[case]["ours"]["state"] for found in ranks)
    for other in others:
        assert all(torch.equal(first[name], other[name]) for name in first)


def test_shards_train_as_one_process_with_the_whole_batch(ranks: list[Found]) -> None:
    whole = ranks[0]["whole_batches"]
    exact = {f"module.{name}": each for name, each in whole["exact"]["state"].items()}
    one = {f"module.{name}": each for name, each in whole["torch"]["state"].items()}
    ours = ranks[0]["sgd"]["ours"]["state"]
    assert error_of(ours, exact) <= most_beside(error_of(one, exact))
    losses = torch.stack([found["sgd"]["ours"]["losses"] for found in ranks]).mean(0)
    torch.testing.assert_close(losses, whole["torch"]["losses"], rtol=1e-4, atol=1e-6)


def test_statistics_are_those_of_all_ranks(ranks: list[Found]) -> None:
    whole = ranks[0]["whole_batches"]
    one, exact = (whole[f"{way} normalized"]["state"] for way in ("torch", "exact"))
    for found in ranks:
        ours, losses = found["synchronized"]["state"], found["synchronized"]["losses"]
        assert error_of(ours, exact) <= most_beside(error_of(one, exact))
        assert ours["norm.num_batches_tracked"].item() == len(losses)


def test_buckets_are_reduced_while_later_parts_of_backward_wait(ranks: list[Found]) -> None:
    for found in ranks:
        events = found["buckets"]
        parts = [event for event in events if event.startswith("part")]
        buckets = [event for event in events if event.startswith("bucket")]
        assert len(parts) > 2
        assert len(buckets) > 2
        assert parts == [f"part {number}" for number in range(1, 1 + len(parts))]
        assert events.index(buckets[0]) < events.index(parts[-1])
        assert events.index(buckets[1]) < events.index(parts[-1])


def assert_same_gradients(ours: dict[str, Any], torchs: dict[str, Any]) -> None:
    assert ours.keys() == torchs.keys()
    for name, theirs in torchs.items():
        assert (ours[name] is None) == (theirs is None), name
        if theirs is not None:
            torch.testing.assert_close(ours[name], theirs, rtol=1e-4, atol=1e-6, msg=name)


def test_gradients_accumulate_without_reductions(ranks: list[Found]) -> None:
    for found in ranks:
        assert_same_gradients(found["accumulated"]["ours"], found["accumulated"]["torch"])


@pytest.mark.parametrize("users", [(), (1,)])
def test_unused_parameters_get_what_torch_gives_them(
    ranks: list[Found], users: tuple[int, ...]
) -> None:
    for found in ranks:
        unused = found["unused"]
        mine, theirs = unused[f"ours, used by {users}"], unused[f"torch, used by {users}"]
        assert_same_gradients(mine, theirs)
        assert (theirs["spare.weight"] is None) == (not users)


def test_a_group_of_two_ranks_trains(ranks: list[Found]) -> None:
    for found in ranks[:2]:
        ours, torchs = (found["two_ranks"][way]["state"] for way in ("ours", "torch"))
        for name, theirs in torchs.items():
            torch.testing.assert_close(ours[name], theirs, rtol=1e-4, atol=1e-6)
    assert [found["two_ranks"] for found in ranks[2:]] == [None] * (WORLD - 2)


def test_checkpoints_go_from_ours_to_torchs(ranks: list[Found]) -> None:
    for found in ranks:
        ours, torchs = (found["checkpoints"][way]["state"] for way in ("ours", "torch"))
        assert ours.keys() == torchs.keys()
        for name, theirs in torchs.items():
            torch.testing.assert_close(ours[name], theirs, rtol=1e-4, atol=1e-6)
