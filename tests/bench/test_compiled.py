"""The rows of kernels compiled without a GPU, and which cases are compiled for whom."""

import json
from dataclasses import replace
from importlib.util import find_spec

from bench.compiled import modules, rows, text_of
from bench.offline.compiler import HOPPER, Report

ONE = Report("case", HOPPER, "relu", "relu_kernel", 1000, 0, False, 0, 0, registers=40)


def test_a_row_has_the_most_that_a_variant_takes() -> None:
    other = replace(ONE, launcher="add", shared_nbytes=2000, registers=30, spilled_nbytes=8)
    elsewhere = replace(ONE, arch=80, registers=None)
    document = json.loads(text_of(rows([ONE, other, elsewhere])))
    common = {"kernel": "relu_kernel", "variants": 2, "launchers": ["add", "relu"]}
    most = {"shared_nbytes": 2000, "registers": 40, "spilled_nbytes": 8}
    assert document["rows"][1] == common | {"arch": HOPPER} | most
    assert (document["rows"][0]["arch"], document["rows"][0]["registers"]) == (80, 0)
    assert document["environment"].keys() >= {"triton", "torch", "commit"}


def test_candidates_and_steps_are_compiled_for_hopper_alone() -> None:
    assert modules(80) == ["bench.offline.cases"]
    assert modules(HOPPER)[1:] == ["bench.offline.steps", "bench.offline.candidates"]
    for name in modules(HOPPER):
        assert find_spec(name) is not None
