"""Errors of gradients under gist-lossy: what a row says, and the table of rows."""

import json
from pathlib import Path

import pytest
import torch

from bench.lossy_errors import relative_errors, rows_of
from bench.plain_rows import LOSSY_ERRORS, markdown


def test_rows_have_exact_losses_and_errors_that_grow_as_bits_go() -> None:
    """LeNet-5's largest error is less than a format's largest rounding."""
    rows = list(rows_of("lenet5", "fp32", 4, 1 / 2))
    assert [row["policy"] for row in rows] == [f"gist-lossy:{n}" for n in ("fp16", "fp10", "fp8")]
    for row, rounding in zip(rows, (2**-11, 2**-5, 2**-4), strict=True):
        assert row["loss_is_exact"]
        assert row["rounded_maps"] > 0
        assert rounding / 8 < row["largest_error"] < rounding
        assert row["of"].endswith("weight")
    assert [row["policy"] for row in rows_of("lenet5", "bf16", 2, 1 / 2)] == [
        f"gist-lossy:{name}" for name in ("fp10", "fp8")
    ]


def test_errors_are_shares_of_gradients_that_are_not_zero() -> None:
    exact = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0, 0.0])}
    found = {"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([0.0, 1.0])}
    assert relative_errors(found, exact) == {"a": pytest.approx(0.1)}


def test_a_line_is_a_network_with_the_errors_of_all_codecs(tmp_path: Path) -> None:
    row = {"net": "nin", "batch": 4, "dtype": "bf16", "rounded_maps": 7, "of": "conv1.weight"}
    rows = [
        {**row, "policy": f"gist-lossy:{name}", "largest_error": error}
        for name, error in (("fp10", 0.0123), ("fp8", 0.0245))
    ]
    (tmp_path / "plans").mkdir()
    document = {"environment": {"commit": "c0ffee1"}, "rows": rows}
    (tmp_path / LOSSY_ERRORS.file).write_text(json.dumps(document))
    assert markdown(tmp_path, LOSSY_ERRORS).splitlines()[-1] == (
        "| nin(4) | bf16 | 7 | - | 1.2e-02 (conv1.weight) | 2.5e-02 (conv1.weight) |"
    )
