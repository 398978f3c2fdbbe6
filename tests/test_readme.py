"""The README: its code runs as it stands, its commands parse, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tvdnn.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [
    shlex.split(line)[1:]
    for block in re.findall(r"^```bash\n(.*?)^```", README, re.M | re.S)
    for line in block.splitlines()
    if line.startswith("tvdnn ")
]


def test_the_python_runs_from_top_to_bottom(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    assert len(blocks) >= 4
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^loss \d+\.\d+, peak \d+ bytes by plan$", done.stdout, re.M)
    assert (tmp_path / "checkpoint.pt").exists()


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if "--hardware" in command], ids=" ".join
)
def test_a_simulated_command_runs(
    command: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    assert main(command) == 0
    policy = command[command.index("--policy") + 1].split(",")[-1]
    assert policy in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_has_the_options_it_is_shown_with(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command[0], "--help"]) == 0
    text = capsys.readouterr().out
    assert [word for word in command if word.startswith("--") and word not in text] == []


def test_the_two_main_commands_stand_first() -> None:
    first = re.search(r"^```bash\n(.*?)^```", README, re.M | re.S)
    assert first is not None
    assert first[1].splitlines() == [
        'pip install -e ".[demo]" && tvdnn bench',
        'pip install -e ".[test]" && pytest',
    ]


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    anchors = {
        "#" + re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-")
        for head in re.findall(r"^#+ (.*)$", README, re.M)
    }
    local = [target for target in targets if "://" not in target]
    assert all(t in anchors if t.startswith("#") else (ROOT / t).exists() for t in local), local


def test_folders_named_exist() -> None:
    named = re.findall(r"`((?:tvdnn|kernels|bench|tests)/[\w/.]*)`", README)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
