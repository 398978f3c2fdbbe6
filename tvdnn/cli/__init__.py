"""The command line: each command parses, calls, renders and returns a code."""

import sys
from collections.abc import Sequence

import typer
from rich.console import Console

from .. import __version__
from ..errors import InputError, TvdnnError
from .bench import bench
from .doctor import doctor
from .output import FAILED, USAGE, messages
from .plan import plan
from .train import train


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code: 0 done, 1 infeasible or failed, 2 usage."""
    console = messages()
    try:
        _app()(args=arguments, prog_name="tvdnn")
    except InputError as error:
        sys.exit(_fail(console, error, USAGE))
    except TvdnnError as error:
        sys.exit(_fail(console, error, FAILED))


def _fail(console: Console, error: TvdnnError, code: int) -> int:
    console.print(f"tvdnn: {error}", style="red", markup=False, highlight=False)
    return code


def _app() -> typer.Typer:
    app = typer.Typer(
        name="tvdnn",
        help="Train networks whose feature maps outgrow the GPU, inside a budget never exceeded.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    for command in (bench, plan, train, doctor):
        app.command()(command)
    return app


def _root(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        print(f"tvdnn {__version__}")  # noqa: T201  (a version is printed bare)
        raise typer.Exit


__all__ = ["main"]
