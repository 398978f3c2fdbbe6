"""Bytes of Gist's networks: what a row counts, and the means of their table."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from bench.gist_memory import observed_densities, rows_of
from bench.plain_rows import GIST_MEMORY, markdown
from tvdnn import models

FORMS = ("", ":ssdc", ":bitmap")
LOSSY = ("fp16", "fp10", "fp8")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """AlexNet with an eighth of its channels."""
    by_name: Callable[..., nn.Module] = partial(models.by_name, width=1 / 8)
    monkeypatch.setattr(models, "by_name", by_name)
    observed_densities.cache_clear()


@pytest.mark.usefixtures("narrow")
def test_rows_count_what_the_arena_holds() -> None:
    rows = rows_of("alexnet", "fp32", 16)
    policies = ["keep", *(f"gist-lossless{form}" for form in FORMS)]
    policies += [f"gist-lossy:{form}" for form in LOSSY]
    assert [(row["policy"], row["fused"]) for row in rows] == [
        (policy, fused) for fused in (False, True) for policy in policies
    ]
    kept, bits, ssdc, bitmap, *_ = rows
    assert kept["shares"] == bits["shares"] == {}
    assert ssdc["shares"] == bitmap["shares"]
    assert all(0.4 < share < 1 for share in ssdc["shares"].values())
    for row in rows:
        assert row["maps_bytes"] + row["other_bytes"] == row["arena_bytes"]
        assert row["ratio"] == kept["arena_bytes"] / row["arena_bytes"]
        assert row["keeps_s"] == next(r for r in rows if r["fused"] == row["fused"])["predicted_s"]
    assert kept["maps_bytes"] > bits["maps_bytes"] > ssdc["maps_bytes"] > bitmap["maps_bytes"]


@pytest.mark.usefixtures("narrow")
def test_rows_of_bfloat16_have_no_half_precision() -> None:
    policies = {row["policy"] for row in rows_of("alexnet", "bf16", 16)}
    lossy = {policy for policy in policies if "lossy" in policy}
    assert lossy == {"gist-lossy:fp10", "gist-lossy:fp8"}


@pytest.mark.usefixtures("narrow")
def test_densities_are_of_maps_behind_relus() -> None:
    """At random weights half of what a ReLU writes is zero, and less of what a pooling takes."""
    found = observed_densities("alexnet", fused=False)
    relus = ("features.6", "features.8")  # between convolutions
    assert all(0.4 < found[name] < 0.7 for name in relus)
    assert all(found[name] > 0.7 for name in ("features.2", "features.5"))  # poolings


def test_means_are_those_of_the_papers_networks(tmp_path: Path) -> None:
    row = {"batch": 64, "dtype": "fp32", "policy": "keep", "fused": False, "ratio": 1.0}
    row |= {"arena_bytes": 10**9, "parameter_bytes": 10**6, "state_bytes": 2 * 10**6}
    row |= {"predicted_s": 0.011, "keeps_s": 0.01}
    rows = [{**row, "net": "nin"}, {**row, "net": "nin", "policy": "gist-lossless", "ratio": 2.0}]
    rows += [{**each, "net": "vgg16", "ratio": each["ratio"] + 1.0} for each in rows]
    rows += [{**row, "net": "inception_v4", "ratio": 100.0}]
    (tmp_path / "plans").mkdir()
    document = {"environment": {"commit": "c0ffee1"}, "rows": rows}
    (tmp_path / GIST_MEMORY.file).write_text(json.dumps(document))
    lines = markdown(tmp_path, GIST_MEMORY).splitlines()[-4:]
    nothing = "| - | - | - |"
    assert lines == [
        f"| nin(64) | fp32 | 3 | 1,000 (1.00x, +10.0%) | 1,000 (2.00x, +10.0%) {nothing}",
        f"| vgg16(64) | fp32 | 3 | 1,000 (2.00x, +10.0%) | 1,000 (3.00x, +10.0%) {nothing}",
        f"| inception_v4(64) | fp32 | 3 | 1,000 (100.00x, +10.0%) | - {nothing}",
        f"| mean of the first five | fp32 | - | 1.50x | 2.50x {nothing}",
    ]
