"""The calls of a traced forward that each step makes again on parameters and buffers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, fx, nn

from ...graph.state import NO_CHANGES, Named, StateCall, StateChanges
from ...ops.traced_op import TracedOp, nested
from ..source_lines import location_text
from .functionalize import storage_of
from .tape import STAND_IN, StateTape, TapedCall

HELD = "held"  # the entry of a node's `meta` that names the held copy which its op reads


@dataclass(frozen=True, slots=True)
class _Change:
    """A call on the tape, with the names of the tensors that it writes, and reads or writes."""

    taped: TapedCall
    writes: tuple[str, ...]
    uses: tuple[str, ...]

    def refusal(self, why: str) -> str:
        """Why a network that makes this call is refused."""
        call = self.taped.recorded
        name = getattr(call.function, "__name__", str(call.function))
        what = f"changes {' and '.join(self.writes)} of" if self.writes else "makes a tensor for"
        line = location_text(call.at)
        return f"{call.within}: {name} {what} the module {why}, which a step would not{line}"


@dataclass(frozen=True, slots=True)
class _Held:
    """The held copy of a buffer, made ahead of the call at a place."""

    copy: str
    name: str
    place: int


def state_changes(
    tape: StateTape, net: nn.Module, nodes: Sequence[fx.Node]
) -> tuple[StateChanges, list[str]]:
    """The changes of parameters and buffers of `net` by each step, and why some are refused.

    `nodes` become ops. A node that reads a buffer before a call changes it gets the name of a held
    copy.
    """
    copies = tape.meta_copies.named()
    changes = _changes(tape)
    if not changes:
        return NO_CHANGES, []
    calls = [call for node in nodes if node.meta["call"] for call in nested(node.meta["call"])]
    read = (node for call in calls for node in (*call.params, *call.state))
    reads = [node for node in read if node is not None and str(node.target) in copies]
    refused = [
        *(each.refusal(each.taped.why) for each in changes if each.taped.why),
        *_late(changes, reads, calls, copies),
        *_shared(changes, net),
        *_read_by_torch(changes, calls, net),
    ]
    if refused:
        return NO_CHANGES, refused
    held = _hold(changes, reads)
    sizes = {name: copy.numel() * copy.element_size() for name, copy in copies.items()}
    written = tuple(dict.fromkeys(name for each in changes for name in each.writes))
    return StateChanges(
        tuple(_with_copies(changes, held)),
        written,
        {each.copy: each.name for each in held},
        sum(each.taped.nbytes for each in changes)
        + sum(sizes[name] for name in (*written, *(each.name for each in held))),
    ), []


def _changes(tape: StateTape) -> list[_Change]:
    """The live calls in their order."""
    names = {storage_of(copy): name for name, copy in tape.meta_copies.named().items()}

    def named(storages: Iterable[int]) -> tuple[str, ...]:
        return tuple(sorted(names[each] for each in storages if each in names))

    return [_Change(x, named(x.changes), named(x.reads | x.changes)) for x in tape.live()]


def _late(
    changes: Iterable[_Change],
    reads: Iterable[fx.Node],
    calls: Iterable[TracedOp],
    copies: dict[str, Tensor],
) -> Iterator[str]:
    """Refusals for writes after an op that reads a trained parameter or changes the buffer."""
    tracked = dict(_tracked_buffers(calls))
    trained = _first_places(x for x in reads if isinstance(copies[str(x.target)], nn.Parameter))
    for change in changes:
        place = change.taped.place
        for name in change.uses:
            if tracked.get(name, place + 1) <= place:
                yield change.refusal(f"after a normalization has changed {name}")
        for name in change.writes:
            if trained.get(name, place + 1) <= place:
                yield change.refusal(f"after {name} was read")


def _tracked_buffers(calls: Iterable[TracedOp]) -> Iterator[tuple[str, int]]:
    state = [node for call in calls if call.tracks for node in call.state]
    yield from _first_places(node for node in state if node is not None).items()


def _first_places(nodes: Iterable[fx.Node]) -> dict[str, int]:
    """The place on the tape of the first node that reads each tensor, by name."""
    found: dict[str, int] = {}
    for node in nodes:
        place = node.meta["place"]
        found[str(node.target)] = min(place, found.get(str(node.target), place))
    return found


def _shared(changes: Iterable[_Change], net: nn.Module) -> Iterator[str]:
    """Refusals for writes to tensors that share their bytes with a parameter or buffer."""
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for change in changes:
        for name in change.writes:
            key = storage_of(tensors[name])
            others = (n for n, x in tensors.items() if n != name and storage_of(x) == key)
            yield from (change.refusal(f"and {other}, which shares its bytes") for other in others)


def _read_by_torch(
    changes: Iterable[_Change], calls: Iterable[TracedOp], net: nn.Module
) -> Iterator[str]:
    """Refusals for writes to tensors of submodules that torch runs again in backward."""
    inside = {
        id(tensor)
        for call in calls
        if call.kind == "opaque"
        for tensor in (*call.attrs["module"].parameters(), *call.attrs["module"].buffers())
    }
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    for change in changes:
        for name in change.writes:
            if id(tensors[name]) in inside:
                yield change.refusal("of a submodule that runs as it is")


def _hold(changes: Sequence[_Change], reads: Iterable[fx.Node]) -> list[_Held]:
    """The held copies; a node that reads one gets its name."""
    held: dict[str, _Held] = {}
    for node in reads:
        name = str(node.target)
        places = [each.taped.place for each in changes if name in each.writes]
        number = sum(place < node.meta["place"] for place in places)
        if number < len(places):
            copy = node.meta[HELD] = f"{name} before change {number + 1}"
            held[copy] = _Held(copy, name, places[number])
    return list(held.values())


def _with_copies(changes: Iterable[_Change], held: Iterable[_Held]) -> Iterator[StateCall]:
    """The calls, and before each the copies of the buffers that it changes."""
    for change in changes:
        for each in held:
            if each.place == change.taped.place:
                args = Named(each.copy), Named(each.name)
                yield StateCall(Tensor.copy_, args, {}, (STAND_IN,))
        yield change.taped.call
