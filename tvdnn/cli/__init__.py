"""The command line: each command parses, calls, renders and returns an exit code."""

from collections.abc import Sequence
from typing import Annotated

import torch
import typer

from .. import __version__
from ..errors import InputError, TvdnnError
from . import bench, doctor, plan, trace, train, tune
from .output import DONE, USAGE, fail


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0 done, 1 infeasible or failed, 2 wrong usage."""
    try:
        _app()(args=arguments, prog_name="tvdnn")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else DONE
    except InputError as error:
        return fail(error, USAGE)
    except (TvdnnError, torch.OutOfMemoryError) as error:
        return fail(error)
    return DONE


def _app() -> typer.Typer:
    app = typer.Typer(
        name="tvdnn",
        help="Train networks whose feature maps outgrow the GPU, inside a budget never exceeded.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_root)
    commands = (bench.bench, plan.plan, tune.tune, trace.trace, train.train, doctor.doctor)
    for command in commands:
        app.command()(command)
    return app


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tvdnn {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", callback=_say_version, is_eager=True
        ),
    ] = False,
) -> None: ...


__all__ = ["main"]
