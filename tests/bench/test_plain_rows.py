"""Tables of other results than whole steps, from rows worked out by hand."""

import json
from pathlib import Path

from bench.plain_rows import COMPILED, COPIES, FRONTIER, TIERS, markdown, rivals


def written(folder: Path, file: str, rows: list[dict[str, object]]) -> None:
    (folder / file).parent.mkdir(exist_ok=True)
    document = {"environment": {"triton": "3.9.0", "commit": "c0ffee1"}, "rows": rows}
    (folder / file).write_text(json.dumps(document))


def test_an_architecture_is_a_row_with_the_most_of_any_kernel(tmp_path: Path) -> None:
    one = {"arch": 90, "variants": 3, "shared_nbytes": 1024, "registers": 9, "spilled_nbytes": 0}
    other = {**one, "variants": 4, "shared_nbytes": 4096, "registers": 8}
    written(tmp_path, COMPILED.file, [one, other, {**one, "arch": 120, "spilled_nbytes": 16}])
    text = markdown(tmp_path, COMPILED)
    assert "Measured at commit c0ffee1:" in text
    assert text.splitlines()[-2:] == [
        "| 9.0 | 2 | 7 | 4 KiB | 9 | 0 |",
        "| 12.0 | 1 | 3 | 1 KiB | 9 | 16 |",
    ]


def test_a_rate_that_was_not_measured_is_blank(tmp_path: Path) -> None:
    rate = {"measured": "rate", "way": "engine", "mib": 4, "both": 96.5}
    written(tmp_path, COPIES.file, [rate, {"measured": "offload", "way": "flags"}])
    assert markdown(tmp_path, COPIES).splitlines()[-1] == "| engine | 4 | - | - | 96.5 |"


def test_the_steps_of_a_file_stand_with_their_range(tmp_path: Path) -> None:
    row = {"net": "a", "batch": 8, "policy": "auto", "slab_bytes": 1024, "file_bytes": 2048}
    seconds = {"step_s": 0.2, "steps_s": [0.1, 0.2, 0.4], "predicted_s": 0.25, "calibrated_s": 0.22}
    written(tmp_path, TIERS.file, [{**row, **seconds, "busy_cores": 0.52, "equal": True}])
    assert markdown(tmp_path, TIERS).splitlines()[-1] == (
        "| a(8) | auto | 1.00 KiB | 2.00 KiB | 200.0 (100.0 to 400.0) | 250.0 | 220.0 | 0.5 | yes |"
    )


def test_a_way_of_torch_stands_beside_the_fastest_plan_in_its_memory(tmp_path: Path) -> None:
    gib = 2**30
    plan = {"net": "a", "policy": "auto", "planned_peak_bytes": 2 * gib, "step_s": 0.03}
    keep = {**plan, "policy": "keep", "planned_peak_bytes": 4 * gib, "step_s": 0.02}
    refused = {"net": "a", "policy": "auto", "floor": gib}
    written(tmp_path, FRONTIER, [keep, plan, {**plan, "net": "b", "step_s": 0.01}, refused])
    way = {"net": "a", "batch": 8, "way": "eager", "first_steps_s": 1.0}
    shown = rivals(tmp_path)
    eager = {**way, "step_s": 0.05, "measured_peak_bytes": 3 * gib}
    small = {**way, "step_s": 0.07, "measured_peak_bytes": gib}
    written(tmp_path, shown.file, [way, small, eager])
    assert markdown(tmp_path, shown).splitlines()[-3:] == [
        "| a(8) | eager | 50.0 | 3.00 GiB | 1 | auto | 30.0 | 2.00 GiB |",
        "| a(8) | eager | 70.0 | 1.00 GiB | 1 | - | - | - |",
        "| a(8) | eager | - | - | 1 | - | - | - |",
    ]
