"""Known launches: seconds of launches that were measured on GPUs of one name, and ship with tvdnn.

A first step on such a GPU needs no profiling, nor does one without a budget on any GPU with a data
sheet. Measurements on the machine itself come first.
`python -m bench.profiles` writes the files.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Final

from ..errors import InputError
from ..graph import Buffer, Form, Graph, Pass
from ..planner.ir import hardware
from ..planner.ir.costs import Forms, Link, Profile, Roofline, Samples, form_choices
from ..planner.ir.plan import HOST
from ..planner.ir.settings import ENGINE

FOLDER: Final = hardware.FOLDER / "launches"
# GPUs by their sheets whose launches are estimated by those of another with the same chip, which
# reach about the same shares of their rooflines.
SAME_CHIP: Final = {"H100": "NVIDIA H100 80GB HBM3", "H200": "NVIDIA H200"}
_DIGITS: Final = 16  # of the hash of a launch's signature


@dataclass(frozen=True, slots=True)
class KnownLaunches:
    """Seconds of launches on a GPU, and how they compare with the roofline of a data sheet.

    `samples` are by the digest of a signature. `rates` are by `rate_key`: the median over launches
    of one kernel of measured seconds over those of the roofline of `sheet`.
    """

    sheet: str = ""
    samples: Mapping[str, Samples] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)  # by kind of copies

    def find(self, signature: str) -> Samples | None:
        """The measured seconds of a launch, or of a recode; None for one not measured."""
        return self.samples.get(digest(signature))

    def estimate(self, graph: Graph, pass_: Pass, forms: Forms = ()) -> Samples | None:
        """Seconds of a pass by the roofline and the rate of its kernel; None without a sheet.

        The rate of a kernel that is not known is the median of those that are.
        """
        if not self.sheet:
            return None
        rate = self.rates.get(rate_key(graph, pass_), median(self.rates.values() or [1.0]))
        roofline = Roofline(hardware.load(self.sheet), graph.dtype)
        sizes = sorted({min(pass_.unit, pass_.domain), pass_.domain})
        return tuple((rows, rate * roofline.launch_s(pass_, rows, forms)) for rows in sizes)

    def estimate_recode(self, buffer: Buffer, source: Form, target: Form) -> float | None:
        """Seconds of a recode of a buffer by the roofline; None without a sheet."""
        if not self.sheet:
            return None
        roofline = Roofline(hardware.load(self.sheet), dtype="")  # without products
        return roofline.recode_s(buffer, buffer.rows, source, target)


NOTHING: Final = KnownLaunches()


def digest(signature: str) -> str:
    """A hash of the signature of a launch."""
    return hashlib.sha256(signature.encode()).hexdigest()[:_DIGITS]


def rate_key(graph: Graph, pass_: Pass) -> str:
    """The kind of op, role and compute type of a pass: those of one kernel."""
    return f"{graph.ops[pass_.op].kind} {pass_.role} {graph.dtype}"


@cache
def known_launches(gpu: str, folder: Path = FOLDER) -> KnownLaunches:
    """What ships of the GPU of this name, or else the rates of one with the same chip.

    Links are then those of the GPU's data sheet. Without rates it is the sheet alone, and nothing
    for a GPU without one.
    """
    path = folder / file_name(gpu)
    if path.exists():
        return loaded(json.loads(path.read_text()))
    try:
        sheet = sheet_of(gpu)
    except InputError:
        return NOTHING
    path = folder / file_name(SAME_CHIP.get(sheet, gpu))
    rates = loaded(json.loads(path.read_text())).rates if path.exists() else {}
    host = hardware.load(sheet).links.get(HOST)
    return KnownLaunches(sheet, rates=rates, links={} if host is None else {ENGINE: host})


def file_name(gpu: str) -> str:
    """The name of the file of a GPU."""
    return gpu.replace(" ", "_") + ".json"


def loaded(document: Mapping[str, Any]) -> KnownLaunches:
    """The launches of a document of `dumped`."""
    samples = {key: tuple(map(tuple, rows)) for key, rows in document["samples"].items()}
    links = {copies: Link(**link) for copies, link in document["links"].items()}
    return KnownLaunches(document["sheet"], samples, document["rates"], links)


def dumped(known: KnownLaunches) -> dict[str, Any]:
    """The launches as JSON."""
    return {
        "sheet": known.sheet,
        "links": {copies: asdict(link) for copies, link in known.links.items()},
        "rates": dict(sorted(known.rates.items())),
        "samples": dict(sorted(known.samples.items())),
    }


def collect(
    measured: Iterable[tuple[Graph, Profile]],
    sheet: str,
    samples: Mapping[str, Samples],
    links: Mapping[str, Link],
) -> KnownLaunches:
    """Known launches of graphs that were profiled on one GPU.

    `samples` are all measured ones by signature, as the cache of profiles has them. Rates compare
    each pass of the graphs with the roofline of `sheet`, at the most rows that were measured.
    """
    ratios: dict[str, list[float]] = {}
    for graph, profile in measured:
        roofline = Roofline(hardware.load(sheet), graph.dtype)
        for pass_ in graph.passes:
            for forms in form_choices(pass_):
                rows, seconds = profile.samples[pass_.name][frozenset(forms)][-1]
                ratio = seconds / roofline.launch_s(pass_, rows, forms)
                ratios.setdefault(rate_key(graph, pass_), []).append(ratio)
    rates = {key: median(found) for key, found in ratios.items()}
    return KnownLaunches(sheet, {digest(key): each for key, each in samples.items()}, rates, links)


def sheet_of(gpu: str) -> str:
    """The data sheet of a GPU: that whose name its name contains.

    Raises InputError with all names where there is none.
    """
    words = gpu.lower().replace("-", " ").split()
    found = [name for name in hardware.names() if all(w in words for w in name.lower().split())]
    return max(found, key=len) if found else hardware.load(gpu).name
