"""Write every table and the figure: README.md's, bench/RESULTS.md and bench/KERNELS.md.

    python -m bench.tables

The rows lie in bench/results. No number is typed by hand, and each table names the commits at which
its rows were measured.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import data_parallel, headline, kernel_rows, networks, plain_rows, releases, scaling
from bench.entries import Result, read
from bench.sections import sections
from bench.zoo import tables as zoo

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
FIGURE = RESULTS / "overview.svg"
ZOO = RESULTS / "zoo"
WRITTEN = "Written by `python -m bench.tables`. Do not edit."
# The chapters of bench/RESULTS.md: a title, how names of files begin, and an introduction.
CHAPTERS = (
    (
        "Training beside torch",
        ("compare_",),
        "The same network by torch eager, by torch.compile, by `keep`, and by `auto` inside a "
        "budget. `inside` is the budget with what the caller holds. The slowdown is over `keep`.",
    ),
    (
        "Policies and budgets",
        ("vgg16_", "budgets", "deep", "largest", "tuned", "soak"),
        "The measured peak is of what the budget covers. Torch's counter has the caller's inputs "
        "and outputs too. The slowdown is over `keep`.",
    ),
    (
        "Gist and SuperNeurons",
        ("gist_", "superneurons_"),
        "The slowdown is over `keep` of the same graph.",
    ),
    ("Errors against float64", ("accuracy_",), ""),
    ("Plans alone, simulated", ("plans_",), ""),
)
RESULTS_HEAD = f"""\
# Results of whole steps

{WRITTEN}
[bench/README.md](README.md) says which script measures what. `bound ms` is a lower bound on the
time of a step inside the budget, `relaxed ms` the bound of the integer program's relaxation.
`computing / link ms` are the launches' own time and the copies' own time. The commit of a table is
that of tvdnn when its rows were measured."""
KERNELS_HEAD = f"""\
# Results of single kernels

{WRITTEN}
Each kernel ran beside cuDNN's, cuBLAS's or torch's in turns in one process (`python -m
bench.kernels`), on random data and with a cold cache. A network's sum counts each layer as often as
the network has it, without the first layer's data gradient, which no step computes. Errors are
relative to float64, ours / theirs. The roofline is what large copies and products reach on the same
GPU, for the bytes and products that a launch cannot do without: no taps on padding, no pixels that
no window reads, and no sums that one launch of ours leaves to the next. Launches of at most 50 MB
are held to the rate of the L2 cache, not of the memory: 6.9 TB/s, measured on an H100."""


def results_page(results: Sequence[Result]) -> str:
    """bench/RESULTS.md."""
    parts = [RESULTS_HEAD]
    for title, starts, introduction in CHAPTERS:
        chosen = [result for result in results if result.name.startswith(starts)]
        parts += [f"## {title}", introduction, *sections(chosen)]
    parts += [plain_rows.markdown(RESULTS, plain_rows.LARGE_PLANS)]
    parts += [plain_rows.markdown(RESULTS, zoo.PLANS)]
    parts += [plain_rows.markdown(RESULTS, each) for each in (scaling.TABLE, data_parallel.TABLE)]
    gist = plain_rows.GIST_MEMORY, plain_rows.GIST_MEMORY_FUSED, plain_rows.GIST_LOSSY
    parts += [plain_rows.markdown(RESULTS, each) for each in (*gist, plain_rows.LOSSY_ERRORS)]
    parts += [plain_rows.markdown(RESULTS, plain_rows.rivals(RESULTS))]
    shown = zoo.markdown(ZOO)
    parts += ["## The zoo beside torch", shown] if shown else []
    parts += ["## Running", plain_rows.markdown(RESULTS, plain_rows.REPLANS)]
    parts += [plain_rows.markdown(RESULTS, zoo.FIRST_STEPS)]
    parts += [plain_rows.markdown(RESULTS, plain_rows.COPIES)]
    parts += [plain_rows.markdown(RESULTS, plain_rows.TIERS)]
    parts += [plain_rows.markdown(RESULTS, plain_rows.ENCODE_TO_HOST)]
    parts += ["## Versions of Triton", releases.markdown(RESULTS / "releases")]
    parts += ["## Networks beside torch in float64", networks.markdown(RESULTS / "networks")]
    return "\n\n".join(part for part in parts if part) + "\n"


def kernels_page() -> str:
    """bench/KERNELS.md."""
    compiled = plain_rows.markdown(RESULTS, plain_rows.COMPILED)
    measured = kernel_rows.markdown(RESULTS / "kernels")
    return f"{KERNELS_HEAD}\n\n{measured}\n\n## On all architectures\n\n{compiled}\n"


def fill(readme: str, results: Sequence[Result]) -> str:
    """The README with what stands between its markers made anew."""
    picture = headline.opening(headline.compared(results), FIGURE.relative_to(ROOT))
    filled = _between(readme, "figure", picture)
    ten = zoo.ten_networks(ZOO) or headline.ten_networks(results)
    return _between(filled, "networks", ten)


def _between(text: str, mark: str, body: str) -> str:
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.S)
    filled, count = pattern.subn(lambda _: f"{begin}\n{body}\n{end}", text)
    if count != 1:
        raise ValueError(f"the text has {count} places between {begin} and {end}; it needs one")
    return filled


def pages() -> Mapping[Path, str]:
    """Every file that is written, with its text."""
    results = read(RESULTS)
    made = {
        README: fill(README.read_text(), results),
        ROOT / "bench" / "RESULTS.md": results_page(results),
        ROOT / "bench" / "KERNELS.md": kernels_page(),
    }
    shown = headline.compared(results)
    return made if shown is None else {**made, FIGURE: headline.figure(shown)}


def main() -> None:
    """Write the pages and the figure."""
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
