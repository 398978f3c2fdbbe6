"""Tables of other results than whole steps, from rows worked out by hand."""

import json
from pathlib import Path

from bench.plain_rows import COMPILED, COPIES, markdown


def written(folder: Path, file: str, rows: list[dict[str, object]]) -> None:
    (folder / file).parent.mkdir()
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
