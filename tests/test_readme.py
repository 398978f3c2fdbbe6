"""Every Markdown page: its code runs as it stands, its commands parse, its links lead somewhere."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from typer.main import get_command

from tvdnn.cli import _app, main
from tvdnn.experiment import processes

ROOT = Path(__file__).parent.parent
FOLDERS = ("tvdnn", "kernels", "bench", "tests", ".ci/reference/pages")
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.md"))),
]
README = (ROOT / "README.md").read_text()
MOST_COLUMNS = 9
USAGE = 2  # the exit code of a command line that is refused
PAST = {"CHANGELOG.md", "RESULTS.md", "KERNELS.md"}  # these name files as they were once


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The places of a page that its headings make."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


WITH_CODE = [page for page in PAGES if blocks(page, "python")]
LINES = [line for page in PAGES for block in blocks(page, "bash") for line in block.splitlines()]
COMMANDS = [shlex.split(line)[1:] for line in dict.fromkeys(LINES) if line.startswith("tvdnn ")]


RUN_PAGES = """
import os, runpy, sys
for folder in sys.argv[1:]:
    os.chdir(folder)
    runpy.run_path(os.path.join(folder, "page.py"), run_name="__main__")
    print(end=chr(12), flush=True)
"""


def run(pages: list[Path], folder: Path) -> list[str]:
    """What each page's code prints, run from top to bottom in a folder and a namespace of its own.

    One process runs all pages. A process of its own would import torch for 3 s to run for 2 s.
    """
    folders = [folder / str(number) for number in range(len(pages))]
    for page, each in zip(pages, folders, strict=True):
        each.mkdir()
        (each / "page.py").write_text("\n".join(blocks(page, "python")))
    done = subprocess.run(
        [sys.executable, "-c", RUN_PAGES, *map(str, folders)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    printed = done.stdout.split(chr(12))
    assert done.returncode == 0, f"{name_of(pages[len(printed) - 1])}: {done.stderr}"
    return printed[:-1]


@pytest.mark.slow
def test_the_code_of_every_page_runs(tmp_path: Path) -> None:
    """The README's trains and saves."""
    assert WITH_CODE[0] == ROOT / "README.md"
    assert len(blocks(WITH_CODE[0], "python")) >= 4
    printed = run(WITH_CODE, tmp_path)
    assert len(printed) == len(WITH_CODE)
    assert re.search(r"^loss \d+\.\d+, peak \d+ bytes by plan$", printed[0], re.M)
    assert (tmp_path / "0" / "checkpoint.pt").exists()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_parts_of_files_to_be_written_compile(page: Path) -> None:
    """A block of `py` is a part of a file that the reader writes; it cannot run by itself."""
    for block in blocks(page, "py"):
        compile(block, str(page), "exec")


@pytest.mark.usefixtures("few_trials")
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
    monkeypatch.setattr(processes, "PROCESSES", 1)
    monkeypatch.chdir(tmp_path)
    assert main(command) == 0
    policy = command[command.index("--policy") + 1].split(",")[-1]
    assert policy in capsys.readouterr().out


def parsed(command: list[str]) -> dict[str, object]:
    """The arguments and options of a command line. Nothing is run."""
    name, *words = command
    return get_command(_app()).commands[name].make_context(name, words).params


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_parses(command: list[str]) -> None:
    parsed(command)


def refused(option: str) -> Any:
    """The error of usage, of a class that each version of typer has in another module."""
    with pytest.raises(Exception) as caught:
        parsed(["tune", "vgg16", option])
    assert getattr(caught.value, "exit_code", None) == USAGE, caught.value
    return caught.value


def test_what_parses_is_told_apart() -> None:
    assert parsed(["tune", "vgg16", "--batch", "256"])["batch"] == 256
    assert refused("--chunks=1MiB").option_name == "--chunks"
    assert refused("--batch=none").param.name == "batch"


def test_modules_run_by_name_exist() -> None:
    named = {
        name for line in LINES for name in re.findall(r"python -m ((?:bench|tvdnn)[\w.]*)", line)
    }
    assert named
    paths = [ROOT / name.replace(".", "/") for name in named]
    missing = [p for p in paths if not p.with_suffix(".py").exists() and not p.is_dir()]
    assert missing == []


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name == "api"], ids=name_of)
def test_a_page_of_the_reference_shows_what_exists(page: Path) -> None:
    shown = re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)
    assert shown
    assert all(resolve_name(name).__doc__ for name in shown)


def test_the_two_main_commands_stand_first() -> None:
    assert blocks(ROOT / "README.md", "bash")[0].splitlines() == [
        'pip install -e ".[demo]" && tvdnn bench',
        'pip install -e ".[test]" && pytest',
    ]


def test_the_readme_is_read_in_one_sitting() -> None:
    assert 200 <= len(README.splitlines()) <= 250


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, place = target.partition("#")
        if "://" in target:
            continue
        file = page.parent / path if path else page
        if not file.exists() or (place and place not in anchors(file)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in PAST], ids=name_of)
def test_folders_and_files_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:tvdnn|kernels|bench|tests)/[\w/.]*)`", page.read_text())
    existing = [name for name in named if "NAME" not in name]  # a reader's own file may be NAME
    assert [name for name in existing if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_tables_fit_a_page(page: Path) -> None:
    rules = re.findall(r"^\|[ :|-]+\|$", page.read_text(), re.M)
    assert max((rule.count("|") - 1 for rule in rules), default=0) <= MOST_COLUMNS
