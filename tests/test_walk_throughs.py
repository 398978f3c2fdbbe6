"""The walk-throughs of three READMEs: each diff fits this tree, and the tests find what it adds."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
KERNEL, OPERATOR, POLICY = "kernels", "tvdnn/ops", "tvdnn/planner"
LAUNCHES = "tests/kernels/test_launches.py::"
WRITTEN = f"{LAUNCHES}test_launches_write_what_references_say_and_nothing_beside"
TRAINED = "tests/engine/test_networks.py::test_every_policy_trains_to_the_bits_of_keep"
GRADIENTS = "tests/engine/test_networks.py::test_gradients_are_torchs"
FINDING = (  # tests that find the kernel, the operator and the policy
    f"{WRITTEN}[hardshrink, torch.bfloat16, 2x8x8x32]",
    f"{WRITTEN}[hardshrink, torch.float32, 3x5x7x19]",
    f"{LAUNCHES}test_every_launcher_has_a_case_that_is_compiled",
    "tests/nn/test_constructors.py::test_constructor_is_torchs[Hardshrink]",
    "tests/nn/test_eager.py::test_a_layer_alone_has_the_bits_of_the_engine[hardshrink-bf16]",
    f"{TRAINED}[activations: every layer, fp32, torch]",
    f"{GRADIENTS}[activations: every layer]",
    "tests/planner/test_early.py",
    "tests/planner/test_policies.py::test_the_floor_is_a_budget_that_works[early]",
    "tests/engine/test_trainer.py::test_policies_train_to_the_bits_of_keep[early]",
)


class Change(NamedTuple):
    """A file that a diff changes: lines to find and what stands in their place, for each hunk."""

    path: str
    hunks: tuple[tuple[str, str], ...]


def changes(folder: str) -> Iterator[Change]:
    """What the diffs of a folder's README change."""
    page = (ROOT / folder / "README.md").read_text()
    for block in re.findall(r"^```diff\n(.*?)^```", page, re.M | re.S):
        for part in re.split(r"^--- .*\n\+\+\+ b/", block, flags=re.M)[1:]:
            path, *hunks = re.split(r"\n@@.*\n", part)
            yield Change(path, tuple((side(hunk, "-"), side(hunk, "+")) for hunk in hunks))


def side(hunk: str, mark: str) -> str:
    """The lines of a hunk before or after the change."""
    return "".join(f"{line[1:]}\n" for line in hunk.splitlines() if line[:1] in ("", " ", mark))


def apply(change: Change, tree: Path) -> None:
    path = tree / change.path
    text = path.read_text() if path.exists() else ""
    for before, after in change.hunks:
        assert text.count(before) == 1, f"no one place in {change.path} for the lines:\n{before}"
        text = text.replace(before, after)
    path.write_text(text)


@pytest.mark.parametrize(
    ("folders", "most"), [((KERNEL,), 2), ((KERNEL, OPERATOR), 5), ((POLICY,), 3)]
)
def test_an_addition_touches_few_files(folders: tuple[str, ...], most: int) -> None:
    """A kernel 2, an operator with its kernel 5, a policy 2 and its test."""
    paths = [change.path for folder in folders for change in changes(folder)]
    assert len({*paths}) == len(paths) == most


@pytest.mark.slow
def test_the_tests_find_what_the_diffs_add(tmp_path: Path) -> None:
    for name in ("tvdnn", "kernels", "bench", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "results")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for folder in (KERNEL, OPERATOR, POLICY):
        for change in changes(folder):
            apply(change, tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", *FINDING],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_lines_that_are_no_longer_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("one\ntwo\n")
    apply(Change("file.py", (("one\n", "one\nmore\n"),)), tmp_path)
    assert (tmp_path / "file.py").read_text() == "one\nmore\ntwo\n"
    with pytest.raises(AssertionError, match=r"no one place in file\.py for the lines:\s+three"):
        apply(Change("file.py", (("three\n", ""),)), tmp_path)
