"""The package: a wheel, an editable install and the bare checkout all hold the same modules."""

import os
import re
import shutil
import site
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from setuptools import build_meta

import tvdnn

ROOT = Path(__file__).parent.parent
TELL = """
import tvdnn, tvdnn.kernels.conv.conv2d
from tvdnn.planner.ir import hardware
print(tvdnn.__file__, tvdnn.kernels.conv.conv2d.__file__, len(hardware.names()))
"""
OUTSIDE = {"build", "dist", "__pycache__"}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of what is packaged, for builds to leave their traces in."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("tvdnn", "kernels"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns(*OUTSIDE))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(copy)
        yield copy


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel, unpacked."""
    built = source / build_meta.build_wheel(str(source))
    return unpacked(built, source / "unpacked")


def unpacked(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(code: str, *paths: Path, folder: Path) -> list[str]:
    """What Python prints for `code`, run in `folder` with `paths` before the installed packages.

    Under -S no .pth file is read, so that an editable install of tvdnn itself is not seen.
    """
    found = os.pathsep.join(map(str, [*paths, *site.getsitepackages()]))
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": found},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def files_of(folder: Path) -> set[str]:
    """Modules and data that the checkout has for the package, as the wheel should name them.

    Pages for readers of the code stay out of the wheel.
    """
    parts = {"tvdnn": folder / "tvdnn", "tvdnn/kernels": folder / "kernels"}
    return {
        f"{prefix}/{path.relative_to(top)}"
        for prefix, top in parts.items()
        for path in top.rglob("*")
        if path.is_file() and path.suffix != ".md" and not OUTSIDE & set(path.parts)
    }


def test_the_wheel_holds_every_module_and_profile(wheel: Path) -> None:
    assert {str(path.relative_to(wheel)) for path in wheel.glob("tvdnn/**/*.*")} == files_of(ROOT)


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    metadata = next(wheel.glob("*.dist-info/METADATA")).read_text()
    assert f"\nVersion: {tvdnn.__version__}\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    needs = set(re.findall(r"^Requires-Dist: ([\w-]+)", metadata, re.M))
    assert {"torch", "triton", "numpy", "rich", "typer"} <= needs
    assert set(re.findall(r"^Provides-Extra: (\w+)", metadata, re.M)) == {
        "demo",
        "docs",
        "plot",
        "test",
    }


def test_the_wheel_imports_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    package, kernels, profiles = run(TELL, wheel, folder=tmp_path)
    assert Path(package) == wheel / "tvdnn" / "__init__.py"
    assert Path(kernels) == wheel / "tvdnn" / "kernels" / "conv" / "conv2d.py"
    assert int(profiles) == len(list((ROOT / "tvdnn" / "hardware").glob("*.json")))


@pytest.mark.filterwarnings("ignore:\\s*Editable installation")
def test_an_editable_install_imports_the_checkout(source: Path, tmp_path: Path) -> None:
    installed = unpacked(source / build_meta.build_editable(str(source)), tmp_path / "installed")
    add = f"import site; site.addsitedir({str(installed)!r})"
    package, kernels, _ = run(add + TELL, installed, folder=tmp_path)
    assert Path(package) == source / "tvdnn" / "__init__.py"
    assert Path(kernels) == source / "kernels" / "conv" / "conv2d.py"


def test_the_bare_checkout_imports(source: Path, tmp_path: Path) -> None:
    package, kernels, _ = run(TELL, source, folder=tmp_path)
    assert Path(package) == source / "tvdnn" / "__init__.py"
    assert Path(kernels) == source / "kernels" / "conv" / "conv2d.py"


RUN_AS_A_COMMAND = """
import sys, tvdnn.engine
assert "torch._dynamo" not in sys.modules
from runpy import run_module
sys.argv = ["tvdnn", "--help"]
run_module("tvdnn", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
def test_the_bare_checkout_runs_as_a_command_and_imports_no_compiler() -> None:
    """A trainer is imported without torch's compiler, which takes seconds."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_AS_A_COMMAND], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in ("bench", "plan", "doctor", "train"))


def test_the_changelog_opens_with_this_version() -> None:
    newest = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == tvdnn.__version__
