"""trace: from a torch module and example inputs to a Network; no kernel runs, no weight is read."""

import warnings
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, fx

from ..errors import InputError, UnsupportedOpError
from ..gc_pause import without_collection
from ..graph.network import Network
from ..graph.state import StateChanges
from ..ops.translate import OF_MAPS
from .example_inputs import meta_inputs
from .modules import refused_at_once
from .op_emitter import OpEmitter
from .parameters import changes_of_formulas, check_buffers, check_parameters, params_of
from .python.patched_torch import ONE_TRACE
from .refusals import unsupported
from .state.changes import state_changes
from .state.functionalize import is_stale
from .tracer import MetaTracer

RESERVED = frozenset({"loss", "target"})  # values that training adds to a network


def trace(
    module: torch.nn.Module,
    example_inputs: Sequence[Tensor],
    *,
    name: str | None = None,
    opaque: bool = False,
    graded: bool = True,
    ordered: bool = False,
) -> Network:
    """The network that `module` computes on inputs of these shapes, in its mode (train or eval).

    Inputs and parameters may be on any device, the meta device included. Lazy layers get their
    parameters, as by a first call; nothing else of the module changes. Parameters that no output
    depends on are left out. Without `graded` the network is that of a call under torch.no_grad().
    With `opaque` torch's own code runs the nearest submodule around an unknown operation that reads
    and makes one tensor, draws no random numbers and changes no buffers but the statistics of batch
    normalizations. With `ordered` a permuted output is copied into the order of maps, which losses
    take.

    Raises InputError for inputs or parameters that do not fit. Raises UnsupportedOpError, which
    lists each operation that tvdnn does not know and each use of values in control flow, with its
    module and line.
    """
    with ONE_TRACE, without_collection():
        return _traced(module, example_inputs, name, opaque, graded, ordered)


def _traced(
    module: torch.nn.Module,
    example_inputs: Sequence[Tensor],
    name: str | None,
    opaque: bool,
    graded: bool,
    ordered: bool,
) -> Network:
    refused = tuple(refused_at_once(module))
    if refused:
        raise unsupported(refused)
    check_parameters(module)
    inputs = meta_inputs(module, example_inputs)
    paths, narrow = frozenset[str](), list[str]()
    while True:
        tracer = MetaTracer(module, inputs, paths, graded=graded)
        with torch.inference_mode(False):
            graph = tracer.trace_net()
        nodes = list(graph.nodes) if tracer.stopped else _live_nodes(graph)
        within = _paths_of_refused_calls(nodes) if opaque else frozenset()
        found, around = within - paths, _parents(within & paths) - paths
        if around and not found:
            narrow = narrow or _refusals_of(nodes)
        if not found and not around:
            if within and narrow:
                raise unsupported(narrow)
            changes = _check_supported(nodes, tracer)
            title = name or type(module).__name__
            network = _network(module, nodes, title, tracer, changes, ordered=ordered)
            if graded:
                check_buffers(module, network)
            _warn_of_written_inputs(nodes, title)
            return network
        paths |= found | around


def _paths_of_refused_calls(nodes: Sequence[fx.Node]) -> frozenset[str]:
    refused = (node for node in nodes if node.meta["refusal"] is not None)
    return frozenset(node.meta["within"] for node in refused) - {""}


def _parents(paths: frozenset[str]) -> frozenset[str]:
    """The paths of the modules around modules that do not run by torch either."""
    return frozenset(path.rpartition(".")[0] for path in paths) - {""}


def _check_supported(nodes: Sequence[fx.Node], tracer: MetaTracer) -> StateChanges:
    """The changes of parameters and buffers by a step. Raises where a call is refused."""
    stopped = [tracer.stopped] if tracer.stopped else []
    changes, unmade = state_changes(tracer.side_effects.tape, tracer.call.net, nodes)
    refused = [*_refusals_of(nodes), *tracer.call.refused, *unmade, *stopped]
    _check_batches(nodes)
    if refused:
        raise unsupported(refused) from tracer.cause
    return changes


def _check_batches(nodes: Sequence[fx.Node]) -> None:
    """Raise InputError where a layer of maps reads an image without a batch."""
    for node in nodes:
        for source in node.all_input_nodes if node.meta["refusal"] is not None else ():
            shape = tuple(getattr(source.meta["value"], "shape", ()))
            if source.op == "placeholder" and len(shape) == 3 and OF_MAPS in node.meta["refusal"]:
                raise InputError(
                    f"input {source.target} of shape {shape} has no batch; pass"
                    f" {source.target}.unsqueeze(0)"
                )


def _warn_of_written_inputs(nodes: Iterable[fx.Node], title: str) -> None:
    """Warn of in-place operations on inputs, whose results the caller does not see."""
    given = (node for node in nodes if node.op == "placeholder")
    for name in (str(node.target) for node in given if is_stale(node)):
        warnings.warn(
            f"{title}: forward writes over its input {name}. A step gives the same result, and"
            " leaves the caller's tensor as it was, where torch writes over that",
            RuntimeWarning,
            stacklevel=2,
        )


def _refusals_of(nodes: Iterable[fx.Node]) -> list[str]:
    return [node.meta["refusal"] for node in nodes if node.meta["refusal"] is not None]


def _live_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The inputs and the nodes that the output or the control flow depends on, in order."""
    live: dict[fx.Node, None] = {}
    for node in reversed(graph.nodes):
        kept = node.op in ("output", "placeholder") or node.meta["kept"]
        if kept or any(user in live for user in node.users):
            live[node] = None
    return list(reversed(live))


def _network(
    module: torch.nn.Module,
    nodes: Sequence[fx.Node],
    name: str,
    tracer: MetaTracer,
    changes: StateChanges,
    *,
    ordered: bool,
) -> Network:
    tensors = {**dict(module.named_buffers()), **dict(module.named_parameters())}
    made = (node for node in nodes if node.op == "placeholder" or node.meta["call"] is not None)
    names = _value_names(
        made, taken=RESERVED | tensors.keys() | tracer.side_effects.recorded.formulas.keys()
    )
    returned = _output_nodes(nodes[-1].args[0], names)
    emitter = OpEmitter(names)
    for node, output in names.items():
        if node.meta["call"] is not None:
            emitter.emit(node.meta["call"], output)
    outputs = tuple(emitter.ordered(node) if ordered else names[node] for node in returned)
    outputs = tuple(map(emitter.handed_out, outputs))
    emitter.drop_unread_moves(outputs)
    params, formulas = params_of(module, emitter.ops, tracer.side_effects.recorded, changes.held)
    refused = tuple(changes_of_formulas(formulas, emitter.ops, changes))
    if refused:
        raise unsupported(refused)
    return Network(
        name=name,
        values=emitter.values,
        ops=tuple(emitter.ops),
        params=params,
        inputs=tuple(names[node] for node in nodes if node.op == "placeholder"),
        outputs=outputs,
        training=module.training,
        gather=tracer.gather,
        detached=frozenset(name for node, name in names.items() if node.meta["stops"]),
        changes=changes,
        formulas=formulas,
        layout_read=tracer.layout_guard.found,
        asked=tracer.input_guard.lines,
    )


def _value_names(nodes: Iterable[fx.Node], taken: Collection[str]) -> dict[fx.Node, str]:
    """Names of the values. The second value of one name, or of a name `taken`, gets `#2`."""
    names: dict[str, fx.Node] = {}
    for node in nodes:
        wanted = name = node.meta["name"]
        count = 1
        while name in names or name in taken:
            count += 1
            name = f"{wanted}#{count}"
        names[name] = node
    return {node: name for name, node in names.items()}


def _output_nodes(outputs: object, names: dict[fx.Node, str]) -> list[fx.Node]:
    nodes = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    others = [type(node).__name__ for node in nodes if not isinstance(node, fx.Node)]
    if others or not nodes:
        found = others[0].removeprefix("immutable_") if others else "no tensor"
        raise UnsupportedOpError(
            f"the network returns {found} where it may return a tensor, or a tuple, list or dict of"
            " them"
        )
    known = [node for node in nodes if isinstance(node, fx.Node) and node in names]
    if len(known) < len(nodes):
        raise UnsupportedOpError("the network returns a tensor that does not come from its inputs")
    return known
