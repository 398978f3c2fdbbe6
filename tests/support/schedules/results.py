"""Results of running a schedule: digests of its outputs, computed byte by byte."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from tvdnn.graph import BITS, RAW, Form, Use, in_form, is_packed
from tvdnn.planner.ir.schedule import Action, Operand, Schedule, Space, Step

Bytes = npt.NDArray[np.uint64]  # one word for every byte of a space


def results(schedule: Schedule) -> Mapping[str, int]:
    """Digests of the outputs and of the parameters after the steps ran in the tuple's order.

    Every kernel is a hash of all that it reads. A wrong byte anywhere shows. A recode to bits
    hashes each row. One to another code hashes the section, and a recode of just that code gives
    the rows back. A use that can take a code has the same result by the code as by the raw rows.
    """
    machine = _Machine(schedule)
    halves = (0, schedule.phase_split), (schedule.phase_split, len(schedule.steps))
    for first, end in halves:
        machine.fill(first, end)
        for index in range(first, end):
            machine.run(schedule.steps[index])
        machine.take(first, end)
    return machine.found


def _digest(*values: object) -> int:
    state = blake2b(digest_size=8)
    for value in values:
        state.update(value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode())
    return int.from_bytes(state.digest(), "little")


def _words(seed: int, count: int) -> Bytes:
    return np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)


class _Machine:
    """All spaces, a word for every byte, and a version for every parameter."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._graph = schedule, schedule.graph
        self._spaces = {s: _words(s + 1, nbytes) for s, nbytes in schedule.sizes.items()}
        self.found: dict[str, int] = {}
        self._values: dict[bytes, Bytes] = {}  # by code, the rows that it is of
        self._packings = 0

    def fill(self, first: int, end: int) -> None:
        raw = (s for s in reversed(self._schedule.residencies) if s.form == RAW)
        stays = {(s.buffer, s.section): s for s in raw}
        for (name, section), stay in stays.items():
            if name in self._graph.inputs and first <= stay.steps[0] < end:
                words = _words(_digest(name, section), stay.nbytes)
                self._spaces[Space.ARENA][stay.offset : stay.offset + stay.nbytes] = words

    def take(self, first: int, end: int) -> None:
        for stay in self._schedule.residencies:
            handed_out = stay.form == RAW and stay.buffer in self._graph.outputs
            if handed_out and first <= stay.steps[-1] < end:
                words = self._spaces[Space.ARENA][stay.offset : stay.offset + stay.nbytes]
                self.found[f"{stay.buffer} {stay.section}"] = _digest(words)

    def run(self, step: Step) -> None:
        if step.action is Action.COPY:
            self._view(step.writes[0])[:] = self._view(step.reads[0])
            return
        if step.action is Action.RECODE:
            self._recode(step.reads, step.writes)
            return
        unit = self._graph.passes[step.pass_index].unit
        for start in range(step.start, step.stop, unit):
            self._run_unit(step, start, min(step.stop, start + unit))
        for code in step.writes[len(self._graph.passes[step.pass_index].writes) :]:
            raw = next(raw for raw in step.writes if raw.buffer == code.buffer)
            self._recode((raw,), (code,))

    def _recode(self, sources: Sequence[Operand], targets: Sequence[Operand]) -> None:
        """Write the target's rows by those of the source. Each packing lies otherwise."""
        source, target = sources[0], targets[0]
        if target.form == RAW and source.form != BITS:
            rows = self._view(target)
            code = b"".join(self._view(each).tobytes() for each in sources)
            lost = _words(_digest(code, "lost"), rows.size)
            values = self._values.get(code, lost)
            rows[:] = values if values.size == rows.size else lost
            return
        first, end = target.start - source.start, target.stop - source.start
        rows = self._all_rows(source)[first:end]
        if target.form in (RAW, BITS):
            self._all_rows(target)[:] = self._recoded(rows, target.buffer, target.form)
            return
        packing = self._packings if is_packed(target.form) else 0
        self._packings += 1
        for each in targets:
            words = _words(_digest(rows.copy(), str(each.form), packing), each.nbytes)
            self._view(each)[:] = words
        code = b"".join(self._view(each).tobytes() for each in targets)
        self._values[code] = rows.flatten()

    def _recoded(self, rows: Bytes, name: str, form: Form) -> Bytes:
        """Rows of a buffer in another form."""
        width = in_form(self._graph.buffers[name], form).row_nbytes
        return np.stack([_words(_digest(row), width) for row in rows])

    def _view(self, operand: Operand) -> Bytes:
        return self._spaces[operand.space][operand.offset : operand.end]

    def _all_rows(self, operand: Operand) -> Bytes:
        row_nbytes = in_form(self._graph.buffers[operand.buffer], operand.form).row_nbytes
        return self._view(operand).reshape(-1, row_nbytes)

    def _rows(self, use: Use, operand: Operand, start: int, stop: int) -> Bytes:
        """The rows and channels that the use touches for domain rows [start, stop)."""
        first, end = use.rows(start, stop, self._graph.buffers[use.buffer])
        rows = self._all_rows(operand)[first - operand.start : end - operand.start]
        return rows if use.channels is None else rows[:, slice(*(4 * c for c in use.channels))]

    def _read(self, use: Use, operand: Operand, start: int, stop: int) -> Bytes:
        """A copy of the rows that the use reads, as a code where the use can take one."""
        rows = self._rows(use, operand, start, stop)
        if use.forms and operand.form == RAW:
            return self._recoded(rows, use.buffer, use.forms[0])
        return rows.copy()

    def _run_unit(self, step: Step, start: int, stop: int) -> None:
        pass_ = self._graph.passes[step.pass_index]
        reads = zip(pass_.reads, step.reads, strict=True)
        params = [self.found.get(name, 0) for name in pass_.params]
        parts = [self._read(use, operand, start, stop) for use, operand in reads]
        value = _digest(pass_.name, start, stop, params, *parts)
        for number, (use, operand) in enumerate(zip(pass_.writes, step.writes, strict=False)):
            rows = self._rows(use, operand, start, stop)
            kept = _digest(rows.copy()) if use.whole and start else 0
            rows[:] = _words(_digest(value, number, kept), rows.size).reshape(rows.shape)
        for name in () if step.recompute else pass_.updates:
            self.found[name] = _digest(self.found.get(name, 0), value)
