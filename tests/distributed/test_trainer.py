"""Trainers that train together: what one process with the whole batch gives."""

from typing import Any

import pytest
import torch

from tests.distributed import trainer_cases
from tests.distributed.states import assert_equal, error_of, most_beside
from tests.support.ranks import WORLD, Found

pytestmark = pytest.mark.slow

CASES = trainer_cases


def plain_of(ranks: list[Found], name: str) -> dict[str, Any]:
    """The state after training by DistributedDataParallel, as the network names it."""
    state = ranks[0]["plain"][name]["state"]
    return {key.removeprefix("module."): each for key, each in state.items()}


@pytest.mark.parametrize(
    ("case", "name", "samples"),
    [
        ("sgd", "SGD", 16),
        ("adamw", "AdamW", 16),
        ("accumulated", "SGD", 16),
        ("of_unequal_parts", "SGD", 14),
    ],
)
def test_parts_train_as_one_process_with_the_whole_batch(
    ranks: list[Found], case: str, name: str, samples: int
) -> None:
    exact = ranks[0]["whole_batches"][f"{name} {samples}"]
    torchs = error_of(plain_of(ranks, name), ranks[0]["whole_batches"][f"{name} 16"]["state"])
    for found in ranks:
        assert error_of(found[case]["state"], exact["state"]) <= most_beside(torchs)
        losses = found[case]["losses"]
        torch.testing.assert_close(losses.double(), exact["losses"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["sgd", "adamw", "accumulated", "of_unequal_parts", "bf16_sums"])
def test_all_processes_hold_the_same_bits(ranks: list[Found], case: str) -> None:
    first, *others = (found[case] for found in ranks)
    for other in others:
        assert torch.equal(first["losses"], other["losses"])
        assert all(torch.equal(each, other["state"][name]) for name, each in first["state"].items())


def test_early_updates_change_no_bit(ranks: list[Found]) -> None:
    for found in ranks:
        early, usual = found["early"], found["sums"]["keep"][1]
        assert torch.equal(early["losses"], usual["losses"])
        assert all(torch.equal(each, usual["state"][n]) for n, each in early["state"].items())
        updates = [n for n, name in enumerate(early["names"]) if name.endswith("update")]
        assert len(updates) > 2
        assert early["names"].index("mean loss sum") < updates[0]
        assert updates[-1] < early["names"].index("mean loss unpack_loss")
        usually = found["early"]["usual names"]
        assert usually.index("mean loss unpack_loss") < usually.index(early["names"][updates[0]])


def test_processes_share_the_host_budget_of_their_machine(ranks: list[Found]) -> None:
    assert [found["host_budget"] for found in ranks] == [(4 << 20) // WORLD] * WORLD


def test_statistics_are_those_of_all_processes(ranks: list[Found]) -> None:
    exact = ranks[0]["whole_batches"]["float64 normalized"]
    torchs = error_of(ranks[0]["whole_batches"]["float32 normalized"]["state"], exact["state"])
    for found in ranks:
        mine = found["synchronized"]
        assert error_of(mine["state"], exact["state"]) <= most_beside(torchs)
        assert torch.equal(mine["losses"], ranks[0]["synchronized"]["losses"])
        torch.testing.assert_close(mine["losses"].double(), exact["losses"], rtol=1e-5, atol=1e-6)
        assert mine["state"]["norm.num_batches_tracked"].item() == len(mine["losses"])
        for name, value in mine["state"].items():
            assert torch.equal(value, ranks[0]["synchronized"]["state"][name]), name


def test_statistics_of_parts_are_those_of_all_processes(ranks: list[Found]) -> None:
    for found in ranks:
        mine = found["synchronized_parts"]
        torchs = error_of(mine["whole float32"], mine["whole float64"])
        assert error_of(mine["state"], mine["whole float64"]) <= most_beside(torchs)


def test_statistics_of_all_need_a_group(ranks: list[Found]) -> None:
    for found in ranks:
        assert (
            "SyncBatchNorm normalizes over processes [0, 1, 2, 3]" in (found["synchronized_alone"])
        )


def test_sums_in_bfloat16_are_as_accurate_as_their_digits(ranks: list[Found]) -> None:
    exact = ranks[0]["whole_batches"]["SGD 16"]
    error = error_of(ranks[0]["bf16_sums"]["state"], exact["state"])
    assert 1e-5 < error < 2**-8
    losses = ranks[0]["bf16_sums"]["losses"]
    torch.testing.assert_close(losses.double(), exact["losses"], rtol=2**-8, atol=0)


def test_all_begin_with_the_parameters_of_the_first(ranks: list[Found]) -> None:
    first, *others = (found["other_starts"] for found in ranks)
    for other in others:
        assert all(torch.equal(each, other[name]) for name, each in first.items())


def test_a_wrong_label_stops_the_step_of_all(ranks: list[Found]) -> None:
    for rank, found in enumerate(ranks):
        wrong = found["wrong_labels"]
        assert wrong["unchanged"]
        (told,) = wrong["told"]
        assert ("has label 5" in told) == (rank == 2)
        assert ("another process has a label" in told) == (rank != 2)
        losses = wrong["after"]["losses"]
        assert torch.equal(losses, ranks[0]["wrong_labels"]["after"]["losses"])
        assert losses.isfinite().all()


def test_steps_in_other_parts_are_refused_by_all(ranks: list[Found]) -> None:
    for found in ranks:
        assert "step 1: the processes of the group do different steps" in found["other_parts"]


def test_a_network_that_differs_is_refused_by_all(ranks: list[Found]) -> None:
    for found in ranks:
        assert "process 3 of the group has tensor 1.weight" in found["differences"]


def test_buckets_are_summed_in_one_order_under_every_policy(ranks: list[Found]) -> None:
    for found in ranks:
        (names, kept), (others, planned) = found["sums"]["keep"], found["sums"]["auto"]
        assert names == others == ranks[0]["sums"]["keep"][0]
        assert names[-1] == "mean loss sum [0, 4)"
        assert sum(name.startswith("bucket of") for name in names) > 2
        assert torch.equal(kept["losses"], planned["losses"])
        assert all(torch.equal(each, planned["state"][n]) for n, each in kept["state"].items())


def test_a_loss_is_that_of_all_samples(ranks: list[Found]) -> None:
    for found in ranks:
        mine, expected = found["functional"]
        assert mine == pytest.approx(expected, rel=1e-6)
    assert len({found["functional"][0] for found in ranks}) == 1
    assert len(ranks) == WORLD


def test_dropout_draws_by_the_sample_among_all(ranks: list[Found]) -> None:
    whole = ranks[0]["dropout"]["whole"]
    for found in ranks:
        for name, each in found["dropout"]["parts"].items():
            torch.testing.assert_close(each, whole[name], rtol=1e-4, atol=1e-6)


def test_a_layer_without_gradients_stays_as_it_is(ranks: list[Found]) -> None:
    exact = ranks[0]["detached"]["exact"]
    for found in ranks:
        for name, each in found["detached"]["ours"].items():
            torch.testing.assert_close(each.double(), exact[name], rtol=1e-4, atol=1e-6)


def test_all_processes_have_one_plan(ranks: list[Found]) -> None:
    assert len({found["plans"]["steps"] for found in ranks}) == 1
    assert len({found["plans"]["told"] for found in ranks}) == 1


def test_survivors_of_a_killed_process_have_changed_nothing(ranks: list[Found]) -> None:
    assert "killed" not in ranks[-1]
    for rank, found in enumerate(ranks[:-1]):
        for killed in found["killed"].values():
            assert f"process {rank} of 4: a sum over all processes failed" in killed["told"]
            assert_equal(killed["after"], killed["before"])
