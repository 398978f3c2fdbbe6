"""The rows of kernels compiled without a GPU, and which cases are compiled for whom."""

import json
from dataclasses import replace

from bench.compiled import VARIANTS, modules, rows, text_of
from tests.kernels.test_compile import CASE_FILES, CASES
from tests.support.offline import HOPPER, Report

ONE = Report("case", HOPPER, "relu", "relu_kernel", 1000, 0, needs_wgmma=False, registers=40)


def test_a_row_has_the_most_that_a_variant_takes() -> None:
    other = replace(ONE, launcher="add", shared_nbytes=2000, registers=30, spilled_nbytes=8)
    elsewhere = replace(ONE, arch=80, registers=None)
    document = json.loads(text_of(rows([ONE, other, elsewhere])))
    common = {"kernel": "relu_kernel", "variants": 2, "launchers": ["add", "relu"]}
    most = {"shared_nbytes": 2000, "registers": 40, "spilled_nbytes": 8}
    assert document["rows"][1] == common | {"arch": HOPPER} | most
    assert (document["rows"][0]["arch"], document["rows"][0]["registers"]) == (80, 0)
    assert document["environment"].keys() >= {"triton", "torch", "commit"}


def test_every_case_is_compiled() -> None:
    everything = {f"tests.kernels.cases.{path.stem}" for path in CASE_FILES}
    assert {*modules(HOPPER)} == everything
    assert {*modules(80)} == {*CASES.values()}
    assert everything - {*modules(80)} == {f"tests.kernels.cases.{stem}" for stem in VARIANTS}
