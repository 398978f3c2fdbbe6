"""What the tables of results show of a row: keys that tell rows apart, then a table a question."""

from collections.abc import Callable, Mapping, Sequence

from bench.entries import Entry
from tvdnn.graph import ChunkSizes
from tvdnn.report.tables import COLUMNS, NONE, infeasible_text
from tvdnn.report.tuning import chunks_text
from tvdnn.units import format_bytes

Text = Callable[[Entry], str]
Column = tuple[str, Text]


def _reported(heading: str) -> Column:
    """The column that reports have under this heading."""
    text = next(column.text for column in COLUMNS if column.heading == heading)
    return heading, lambda entry: text(entry.row)


def milliseconds(*keys: str) -> Text:
    """The seconds under these keys in milliseconds."""
    return _joined(lambda seconds: f"{seconds * 1e3:.1f}", keys)


def _nbytes(*keys: str) -> Text:
    return _joined(format_bytes, keys)


def _joined(form: Callable[[float], str], keys: Sequence[str]) -> Text:
    """The values under `keys` with slashes between; nothing where one is missing."""

    def text(entry: Entry) -> str:
        values = [entry.values.get(key) for key in keys]
        return NONE if None in values else " / ".join(form(value) for value in values)

    return text


def _share(key: str) -> Text:
    return _joined(lambda share: f"{share:.1%}", (key,))


def _ratio(*keys: str) -> Text:
    return _joined(lambda ratio: f"{ratio:.2f}", keys)


def _text(key: str) -> Text:
    return lambda entry: entry.values.get(key) or NONE


def _network(entry: Entry) -> str:
    return f"{entry.row.net}({entry.row.batch})"


def _time(entry: Entry) -> str:
    if entry.row.infeasible:
        return infeasible_text(entry.row)
    return milliseconds("step_s")(entry)


def _prediction(entry: Entry) -> str:
    """The predicted time and its distance from the measured one. No prediction has delays."""
    row = entry.row
    if row.predicted_s is None or not row.step_s or entry.values.get("random_delays"):
        return NONE
    return f"{row.predicted_s * 1e3:.1f} ({row.predicted_s / row.step_s - 1:+.1%})"


def _wait_share(entry: Entry) -> str:
    rate, link = entry.values.get("wait_rate"), entry.values.get("link_rate")
    return f"{rate / link:.0%}" if rate and link else NONE


def _at_parts(key: str) -> tuple[str, ...]:
    """The keys of a sweep's values at the floor and at shares of the way from there."""
    return tuple(f"{key}_{part}" for part in ("floor", "quarter", "half", "three_quarters"))


def _equal(entry: Entry) -> str:
    equal = entry.values.get("equal")
    if equal is False and entry.values.get("lossy"):
        return "rounded"
    return {True: "yes", False: "NO"}.get(equal, NONE)


def _tuned_sizes(entry: Entry) -> str:
    """The chunk sizes that tuning found; of other rows nothing."""
    found = entry.values.get("chunks")
    return chunks_text(ChunkSizes(found["default"], found["classes"])) if found else NONE


KEYS: tuple[Column, ...] = (
    ("network", _network),
    _reported("policy"),
    _reported("budget"),
    ("tuned to sections of", _tuned_sizes),
    ("random delays", lambda entry: "yes" if entry.values.get("random_delays") else NONE),
)
QUESTIONS: Mapping[str, tuple[Column, ...]] = {
    "Time": (
        ("step ms", _time),
        _reported("images/s"),
        ("predicted ms", _prediction),
        _reported("bound ms"),
        ("relaxed ms", milliseconds("relaxed_s")),
        _reported("slowdown"),
        ("first step s, caches empty", _joined(lambda seconds: f"{seconds:.1f}", ("cold_s",))),
        ("same bits as keep", _equal),
    ),
    "Memory": (
        ("inside", _nbytes("inside_bytes")),
        _reported("planned peak"),
        _reported("measured peak"),
        ("by torch's counter", _nbytes("max_memory_allocated")),
        _reported("average"),
        _reported("offloaded"),
        ("maps below the baseline", _share("maps_saved")),
    ),
    "Copies": (
        _reported("stall ms"),
        _reported("overlap"),
        ("computing / link ms", milliseconds("compute_s", "link_s")),
        ("link used while waiting", _wait_share),
        ("kernels run", _share("busy_share")),
    ),
    "Endurance": (
        ("first / last 100 steps ms", milliseconds("first_100_s", "last_100_s")),
        ("device / host growth", _nbytes("device_growth_bytes", "host_growth_bytes")),
    ),
    "Errors": (
        ("seeds", _joined(str, ("seeds",))),
        ("losses' error", _ratio("loss_ratio")),
        ("gradients' error, median", _ratio("gradient_ratio")),
        ("largest", _ratio("worst_gradient_ratio")),
        ("gradient with the largest", _text("worst_gradient")),
        ("gradients within 1.25", _share("gradients_within")),
    ),
    "Plans": (
        ("within 1% of the best", _share("best_within")),
        ("slowest over the best", _ratio("worst_to_best")),
        ("within 5% of the ILP", _share("ilp_within")),
        ("slowest over the ILP", _ratio("worst_to_ilp")),
        ("budgets", _joined(str, ("num_budgets",))),
        ("slower at the floor / 1/4 / 1/2 / 3/4", _ratio(*_at_parts("slower"))),
        ("over the bound there", _ratio(*_at_parts("above"))),
    ),
}
