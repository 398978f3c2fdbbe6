"""The command line: its help, and wrong usage."""

import re

import pytest

from tests.support.commands import Captured, run


def test_help_and_version_are_done(capsys: Captured) -> None:
    assert run(capsys, "--version")[:2] == (0, "tvdnn 0.1.0\n")
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(
        re.search(rf"\b{name}\b", out) for name in ("bench", "plan", "trace", "train", "doctor")
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fly"], "No such command 'fly'"),
        (["plan"], "Missing argument"),
        (["plan", "lenet5", "--batch", "0"], "--batch"),
        (["plan", "lenet5", "--batch", "many"], "--batch"),
        (["plan", "lenet6"], "there is no network named 'lenet6'"),
        (["plan", "lenet5", "--dtype", "fp8"], "dtype 'fp8' is not known"),
        (["plan", "lenet5", "--policy", "vdnn-some"], "policy 'vdnn-some' is not known"),
        (["plan", "lenet5", "--budget", "lots"], "'lots' is not a number of bytes"),
        (["plan", "lenet5", "--hardware", "abacus"], "no hardware profile 'abacus'"),
        (["plan", "lenet5", "--json", "/absent/folder/rows.json"], "there is no folder"),
        (["bench", "lenet5", "--policy", "keep,vdnn-some"], "policy 'vdnn-some' is not known"),
        (["bench", "lenet5", "--budget", "none,few"], "'few' is not a number of bytes"),
        (["bench", "lenet5", "--steps", "0"], "--steps"),
        (["train", "lenet5", "--resume"], "--resume needs --checkpoint"),
        (["train", "lenet5", "--data", "absent"], "data 'absent' is neither"),
        (["train", "lenet5", "--batch", "5000"], "fewer than a batch"),
        (["train", "lenet5", "--checkpoint", "/absent/folder/a.pt"], "there is no folder"),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_wrong(
    capsys: Captured, arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
