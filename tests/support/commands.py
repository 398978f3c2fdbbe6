"""Commands run in this process, and their output."""

from pathlib import Path

import pytest

from tvdnn.cli import main

Captured = pytest.CaptureFixture[str]
SMALL = ("lenet5", "--batch", "32", "--chunk-size", "64KiB", "--dtype", "fp32")


def run(capsys: Captured, *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def table(out: str) -> list[str]:
    """The lines that hold anything, their words one blank apart."""
    return [" ".join(line.split()) for line in out.splitlines() if line.strip()]
