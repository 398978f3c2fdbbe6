"""Trainers whose processes have each a shard of the optimizer's state."""

import re

import pytest
import torch

from tests.distributed import shard_cases
from tests.distributed.states import assert_equal, error_of, most_beside
from tests.support.ranks import WORLD, Found
from tvdnn.placement import aligned
from tvdnn.placement.cuda_blocks import block_nbytes

pytestmark = pytest.mark.slow

CASES = shard_cases


def limit_of(ranks: list[Found], name: str) -> float:
    """The largest error that ours may have, by that of plain DistributedDataParallel."""
    found = ranks[0]["torchs"][name]
    plain = {key.removeprefix("module."): each for key, each in found["plain"]["state"].items()}
    return most_beside(error_of(plain, found["exact"]["state"]))


@pytest.mark.parametrize("way", ["SGD", "AdamW", "SGD in bf16", "SGD early"])
def test_shards_train_as_whole_states(ranks: list[Found], way: str) -> None:
    name = way.split()[0]
    exact, first = ranks[0]["torchs"][name]["exact"]["state"], ranks[0]["shards"][way]
    limit = 2**-8 if "bf16" in way else limit_of(ranks, name)
    for found in ranks:
        mine = found["shards"][way]
        assert error_of(mine["state"], exact) <= limit
        assert all(torch.equal(each, first["state"][n]) for n, each in mine["state"].items())
        assert torch.equal(mine["losses"], first["losses"])
        assert_equal(mine["saved"], first["saved"])


@pytest.mark.parametrize(("way", "states"), [("SGD", 1), ("AdamW", 2)])
def test_a_process_keeps_a_part_of_the_state(ranks: list[Found], way: str, states: int) -> None:
    for found in ranks:
        mine = found["shards"][way]
        sizes = [each.numel() for each in mine["state"].values()]
        assert mine["kept"] == states * sum(-(-size // (4 * WORLD)) * 4 for size in sizes)
        assert mine["kept"] < 1.05 * states * sum(sizes) / WORLD + 4 * states * len(sizes)
        pieces = [aligned(4 * -(-size // (4 * WORLD)) * 4) for size in sizes]
        assert mine["fixed"] == block_nbytes(states * sum(pieces))


def test_shards_are_updated_by_accumulated_gradients(ranks: list[Found]) -> None:
    exact = ranks[0]["torchs"]["AdamW"]["exact"]["state"]
    for found in ranks:
        mine = found["accumulated"]["state"]
        assert error_of(mine, exact) <= limit_of(ranks, "AdamW")
        first = ranks[0]["accumulated"]["state"]
        assert all(torch.equal(each, first[name]) for name, each in mine.items())


def test_checkpoints_of_shards_are_those_of_whole_states(ranks: list[Found]) -> None:
    for found in ranks:
        mine = found["restored"]
        assert_equal(mine["found"], mine["expected"])
        assert mine["shown"].count_nonzero() > 0


def test_states_that_the_caller_writes_are_refused(ranks: list[Found]) -> None:
    for found in ranks:
        mine = found["written_states"]
        assert len(mine["told"]) == 4
        assert all("load the whole state by load_state_dict" in each for each in mine["told"])
        assert_equal(mine["found"], mine["expected"])


def test_another_memory_format_is_refused(ranks: list[Found]) -> None:
    for found in ranks:
        assert re.search(r"memory format of parameter \S+ has changed", found["other_layout"])


def test_a_gather_that_fails_is_told(ranks: list[Found]) -> None:
    for found in ranks:
        of_state, of_step = found["failed_gather"]["told"]
        assert of_state == "no answer. All processes call state_dict together"
        assert "no answer; with early_updates or shards" in of_step
        assert found["failed_gather"]["same"]


def test_other_networks_train_in_shards(ranks: list[Found]) -> None:
    for found in ranks:
        sharded, whole = found["other_networks"]
        torch.testing.assert_close(sharded, whole, rtol=1e-4, atol=1e-5)


def test_shards_need_a_group_and_a_name(ranks: list[Found]) -> None:
    for found in ranks:
        alone, unknown = found["refused"]
        assert "give their process_group" in alone
        assert "shard is 'gradients'" in unknown
