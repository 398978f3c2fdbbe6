"""Measured kernels as Markdown: sums over networks, and rows with their peers and errors."""

import json
from dataclasses import asdict
from pathlib import Path

from bench import kernel_rows


def kernel(**values: object) -> kernel_rows.Row:
    row = {
        "set": "vgg16", "kernel": "conv2d", "shape": "64->64 3x3 @224", "samples": 256, "count": 2,
        "dtype": "bf16", "ms": 1.0, "peer": "cuDNN", "peer_ms": 2.0, "tflops": 500.0,
        "gbytes_per_s": 1000.0, "roofline_share": 0.75, "error": 1e-3, "peer_error": 2e-3,
        "config": "",
    }  # fmt: skip
    return kernel_rows.Row(**{**row, **values})


def test_a_networks_sum_counts_each_layer_as_often_as_it_has_it() -> None:
    rows = [
        kernel(),
        kernel(shape="other", count=1, ms=3.0),
        kernel(kernel="conv2d_grad_weight", count=3, peer_ms=1.0),
        kernel(set="elementwise", kernel="relu", tflops=0.0),
    ]
    found = [(s.kernel, s.ms, s.peer_ms, s.worst.shape) for s in kernel_rows.sums(rows)]
    assert found == [
        ("conv2d", 5.0, 6.0, "other"),
        ("conv2d_grad_weight", 3.0, 3.0, "64->64 3x3 @224"),
        ("all", 8.0, 9.0, "other"),
    ]


def test_kernels_are_shown_with_their_peers_and_errors(tmp_path: Path) -> None:
    rows = [asdict(kernel()), asdict(kernel(set="elementwise", tflops=0.0, peer_error=None))]
    about = {"gpu": "H200", "commit": "c0ffee1"}
    (tmp_path / "bf16.json").write_text(json.dumps({"environment": about, "rows": rows}))
    text = kernel_rows.markdown(tmp_path)
    assert "Every kernel, at commit c0ffee1:" in text
    assert "| conv2d | 2.00 | cuDNN 4.00 | 0.50 | 0.50 (64->64 3x3 @224) |" in text
    assert (
        "2 x 64->64 3x3 @224 | 1.000 | 500 TFLOP/s | 75% | 0.50 (cuDNN) | 1.0e-03 / 2.0e-03 |"
        in text
    )
    assert "1000 GB/s | 75% | 0.50 (cuDNN) | 1.0e-03 / - |" in text
    assert "gpu H200" in text
    assert kernel_rows.markdown(tmp_path / "none") == "No kernel is measured yet."
