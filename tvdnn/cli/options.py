"""Options that several commands share."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from .. import models
from ..planner.ir import hardware
from ..planner.policies import POLICIES
from ..report import figures

PathText = TypeVar("PathText", str, Path, None)
BASE_POLICIES = ", ".join(policy for policy in POLICIES if ":" not in policy)


def in_a_folder(path: PathText) -> PathText:
    """`path`, if its folder exists. Checked before the work begins."""
    if path is not None and not Path(path).absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {Path(path).parent} to write into")
    return path


def written_as(*suffixes: str) -> Callable[[Path | None], Path | None]:
    """A check that a path, if given, has one of the suffixes and is `in_a_folder`."""

    def known(path: Path | None) -> Path | None:
        if path is None:
            return None
        if path.suffix not in suffixes:
            raise typer.BadParameter(f"{path} ends in none of {', '.join(suffixes)}")
        return in_a_folder(path)

    return known


def output_option(description: str, *suffixes: str) -> Any:
    """--output or -o: a figure, or a file with one of the other suffixes."""
    return typer.Option(
        "--output", "-o", callback=written_as(*suffixes, *figures.SUFFIXES), help=description
    )


NET_HELP = f"One of {', '.join(models.names())}."
Net = Annotated[str, typer.Argument(help=NET_HELP)]
Batch = Annotated[int, typer.Option(min=1, help="Samples in a batch.")]
ImageSize = Annotated[
    int | None, typer.Option(min=1, help="Side of the images; the network's own if not given.")
]
Dtype = Annotated[
    str | None,
    typer.Option(help="bf16, tf32 or fp32; if not given bf16, or fp32 where a CPU computes."),
]
ChunkSize = Annotated[
    str | None, typer.Option(help="Bytes of a section, the unit of copies: 4MiB, 16MiB, ...")
]
Budget = Annotated[
    str | None,
    typer.Option(help="Device bytes: 6GiB, ..., min or none. Not given: a profile's memory."),
]
HostBudget = Annotated[
    str | None, typer.Option(help="Most pinned host memory: 64GiB, ... or none.")
]
FileBudget = Annotated[
    str | None,
    typer.Option(
        help="Most bytes in a file on a local disk, for what the host budget cannot hold: 1TiB, "
        "... or none for no limit. Not given: no file."
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        help=f"{BASE_POLICIES}; vdnn policies take :m or :p, and :sync after, superneurons "
        ":speed, :memory or :costaware, and :lru after. gist-lossy:fp16, :fp10 and :fp8 round what "
        "backward reads."
        " If not given what tuning found, or auto."
    ),
]
Allow = Annotated[
    str | None,
    typer.Option(
        help="lossy:0.03 lets auto store maps rounded, as long as the gradient of no parameter is "
        "wrong by more than 3%. Not given: all gradients are exact."
    ),
]
Profile = Annotated[
    str | None,
    typer.Option("--hardware", help=f"Simulate on a profile: {', '.join(hardware.names())}."),
]
World = Annotated[
    int,
    typer.Option(
        min=1, help="Processes that train together, a GPU each, every one on --batch samples."
    ),
]
Interconnect = Annotated[
    str | None,
    typer.Option("--link", help=f"Between them: {', '.join(hardware.INTERCONNECTS)}, the first."),
]
Shard = Annotated[
    str | None,
    typer.Option(help="optimizer: each process has a part of the optimizer's state (ZeRO 1)."),
]
JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json",
        callback=in_a_folder,
        help="Write the results to this file; - is standard output.",
    ),
]
