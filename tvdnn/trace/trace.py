"""trace: from a torch module and example inputs to a Network; no kernel runs, no weight is read."""

import inspect
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, fx
from torch.nn.parameter import is_lazy

from ..errors import InputError, UnsupportedOpError
from ..graph.network import Network, Op, Param, Value, channels_last_axes
from ..graph.state import StateChanges
from ..ops.registry import OPERATORS, SUPPORTED
from ..ops.reshape_translator import in_order
from ..ops.traced_op import Inner, Shape, Source, TracedOp
from ..ops.translate import OF_MAPS
from .modules import refused_at_once
from .python.patched_torch import ONE_TRACE
from .state.changes import HELD, state_changes
from .state.formulas import Formula
from .state.functionalize import storage_of
from .state.recorded_calls import RecordedCalls
from .tracer import MetaTracer

PARAM_DTYPES = (torch.float32, torch.bfloat16)  # the latter by float32 copies
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
    parameters, as a first call would give them; nothing else of the module changes. Parameters that
    no output depends on are left out. Without `graded` the network is that of a call under
    torch.no_grad(). UnsupportedOpError lists all that cannot be traced,
    operations that tvdnn has not and control flow by values, each by its module and line. With
    `opaque` the submodules that hold them are ops as they are, where they read and make one tensor,
    draw no random numbers and change no buffers. Where outputs are `ordered`, permuted ones are
    copied into the order of maps, which losses take.
    """
    with ONE_TRACE:
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
        raise _unsupported(refused)
    _check_parameters(module)
    inputs = _meta_inputs(module, example_inputs)
    paths, found = frozenset[str](), frozenset[str]()
    while True:
        tracer = MetaTracer(module, inputs, paths, graded=graded)
        with torch.inference_mode(False):
            graph = tracer.trace_net()
        nodes = list(graph.nodes) if tracer.stopped else _live_nodes(graph)
        found = _refusing(nodes) - paths if opaque else frozenset()
        if not found:
            changes = _check_supported(nodes, tracer)
            title = name or type(module).__name__
            network = _network(module, nodes, title, tracer, changes, ordered=ordered)
            if graded:
                _check_buffers(module, network)
            return network
        paths |= found


def _refusing(nodes: Sequence[fx.Node]) -> frozenset[str]:
    """The paths of the submodules that make calls which are no ops."""
    refused = (node for node in nodes if node.meta["refusal"] is not None)
    return frozenset(node.meta["within"] for node in refused) - {""}


def _check_supported(nodes: Sequence[fx.Node], tracer: MetaTracer) -> StateChanges:
    """What each step changes of the module's state, if all calls are supported."""
    stopped = [tracer.stopped] if tracer.stopped else []
    changes, unmade = state_changes(tracer.side_effects.tape, tracer.net, nodes)
    refused = [*_refusals(nodes), *tracer.side_effects.refused, *unmade, *stopped]
    _check_batches(nodes)
    if refused:
        raise _unsupported(refused) from tracer.cause
    return changes


def _check_batches(nodes: Sequence[fx.Node]) -> None:
    """Check that what a layer of maps reads are no images without a batch."""
    for node in nodes:
        for source in node.all_input_nodes if node.meta["refusal"] is not None else ():
            shape = tuple(getattr(source.meta["value"], "shape", ()))
            if source.op == "placeholder" and len(shape) == 3 and OF_MAPS in node.meta["refusal"]:
                raise InputError(
                    f"input {source.target} of shape {shape} has no batch; pass"
                    f" {source.target}.unsqueeze(0)"
                )


def _refusals(nodes: Iterable[fx.Node]) -> list[str]:
    """Why nodes are no ops, one line each, in the order of the calls."""
    return [node.meta["refusal"] for node in nodes if node.meta["refusal"] is not None]


def _unsupported(refused: Iterable[str]) -> UnsupportedOpError:
    """The error that names every operation that cannot be had, and those that can."""
    lines = "".join(f"\n  {line}" for line in dict.fromkeys(refused))
    return UnsupportedOpError(f"tvdnn cannot trace this network:{lines}\nsupported: {SUPPORTED}")


def _check_parameters(module: torch.nn.Module) -> None:
    for name, param in module.named_parameters():
        if param.dtype not in PARAM_DTYPES:
            raise InputError(
                f"parameter {name} is {_name(param.dtype)}, neither float32 nor bfloat16; call"
                " .float() on the module (the dtype of the computation is chosen apart)"
            )
        if not is_lazy(param) and _shares_elements(param):
            raise InputError(
                f"parameter {name} is expanded: its elements share memory; make it of a .clone()"
            )


def _shares_elements(param: Tensor) -> bool:
    sizes = zip(param.shape, param.stride(), strict=True)
    return any(size > 1 and step == 0 for size, step in sizes)


def _check_buffers(module: torch.nn.Module, network: Network) -> None:
    """Check that buffers which ops read want no gradient and change with no trained parameter."""
    params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    names = [network.changes.held.get(name, name) for name in network.params]
    trained = {storage_of(params[each]): each for each in names if _trains(params.get(each))}
    for name in (each for each in names if each in buffers and each not in params):
        if _trains(buffers[name]):
            raise InputError(f"buffer {name} requires a gradient; register it as a parameter")
        if (other := trained.get(storage_of(buffers[name]))) is not None:
            raise InputError(
                f"buffer {name} shares the storage of the parameter {other}, which trains; register"
                " a copy of it (.detach().clone())"
            )


def _trains(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def _meta_inputs(module: torch.nn.Module, example_inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Float32 meta tensors of the inputs' shapes by the names of forward's arguments."""
    if not example_inputs:
        raise InputError("there are no example inputs; give at least one tensor")
    names = _argument_names(module, example_inputs)
    for name, tensor in zip(names, example_inputs, strict=True):
        _check_input(name, tensor, batch=example_inputs[0].shape[:1])
    return {
        name: torch.empty(
            tensor.shape, dtype=torch.float32, device="meta", requires_grad=tensor.requires_grad
        )
        for name, tensor in zip(names, example_inputs, strict=True)
    }


def _argument_names(module: torch.nn.Module, example_inputs: Sequence[Tensor]) -> list[str]:
    """The names of forward's arguments; those that share one name are numbered."""
    signature = inspect.signature(module.forward)
    try:
        arguments = signature.bind(*example_inputs).arguments
    except TypeError as error:
        count = f"{len(example_inputs)} example inputs"
        raise InputError(
            f"{type(module).__name__}.forward does not take {count}: {error}"
        ) from error
    names: list[str] = []
    for name, value in arguments.items():
        many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}{index}" for index in range(len(value))] if many else [name]
    return names


def _check_input(name: str, tensor: Tensor, *, batch: torch.Size) -> None:
    shape = tuple(tensor.shape)
    if len(shape) not in (2, 3, 4):
        raise InputError(
            f"input {name} has shape {shape}; inputs are [N, C, H, W], [N, C, L] or [N, F]"
        )
    if tensor.shape[:1] != batch:
        raise InputError(
            f"input {name} has a batch of {shape[0]} where the first input's is {batch[0]}"
        )
    if not tensor.is_floating_point():
        raise InputError(
            f"input {name} is {_name(tensor.dtype)}; inputs are of a floating-point type"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _live_nodes(graph: fx.Graph) -> list[fx.Node]:
    """The inputs and what the output or the network's course depends on, in the calls' order."""
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
    names = _value_names(made, taken=RESERVED | tensors.keys() | tracer.recorded.formulas.keys())
    returned = _output_nodes(nodes[-1].args[0], names)
    emitter = _Emitter(names)
    for node, output in names.items():
        if node.meta["call"] is not None:
            emitter.emit(node.meta["call"], output)
    outputs = tuple(emitter.ordered(node) if ordered else names[node] for node in returned)
    outputs = tuple(map(emitter.handed_out, outputs))
    emitter.drop_unread_moves(outputs)
    params, formulas = _params(module, emitter.ops, tracer.recorded, changes.held)
    _check_formulas(formulas, emitter.ops, changes)
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
        layout_read=tracer.layouts.found,
        asked=tracer.asked.lines,
    )


def _check_formulas(
    formulas: Mapping[str, Formula], ops: Iterable[Op], changes: StateChanges
) -> None:
    """Check that a step changes nothing that a formula reads: all are computed before the rest."""
    changed = {name: op.name for op in ops if op.attrs.get("training") for name in op.params[2:]}
    changed |= dict.fromkeys(changes.written, "forward")
    refused = [
        f"{changed[name]} changes {name} in each step, of which {computed} is made{formula.at}"
        for computed, formula in formulas.items()
        for name in formula.names
        if name in changed
    ]
    if refused:
        raise _unsupported(refused)


def _value_names(nodes: Iterable[fx.Node], taken: Collection[str]) -> dict[fx.Node, str]:
    """Names of the values, the second of one name marked `#2`; others have the names `taken`."""
    names: dict[str, fx.Node] = {}
    for node in nodes:
        wanted = name = node.meta["name"]
        count = 1
        while name in names or name in taken:
            count += 1
            name = f"{wanted}#{count}"
        names[name] = node
    return {node: name for name, node in names.items()}


class _Emitter:
    """Makes ops and their values of calls; `names` are those of the values that nodes yield."""

    def __init__(self, names: dict[fx.Node, str]) -> None:
        self.ops: list[Op] = []
        self.values = {name: _value_of(name, node) for node, name in names.items()}
        self._names: dict[Source, str] = dict(names.items())
        self._num_dropouts = 0

    def emit(self, call: TracedOp, name: str) -> None:
        """Append the op whose output is the value `name`, behind those that its call is made of."""
        inputs = tuple(self._input(source, name) for source in call.inputs)
        attrs = dict(call.attrs)
        if OPERATORS[call.kind].draws:
            attrs["op_id"] = self._num_dropouts
            self._num_dropouts += 1
        given = (*call.params, *call.state)
        params = tuple("" if param is None else _name_read(param) for param in given)
        self.ops.append(Op(name, call.kind, inputs, name, params, attrs))

    def _input(self, source: Source, reader: str) -> str:
        """The name of the value that a call reads."""
        if source not in self._names:
            assert isinstance(source, Inner)
            name = self._names[source] = self._free_name(f"{reader} {source.call.kind}")
            self.emit(source.call, name)
            self.values[name] = _value(name, source.shape, source.axes)
        return self._names[source]

    def _free_name(self, wanted: str) -> str:
        numbers = itertools.count(2)
        name = wanted
        while name in self.values:
            name = f"{wanted}#{next(numbers)}"
        return name

    def ordered(self, node: fx.Node) -> str:
        """The name of an output whose channels are stored last: a copy where they are not."""
        source = in_order(node, channels_last_axes(len(node.meta["axes"])))
        return self._input(source, self._names[node])

    def handed_out(self, name: str) -> str:
        """The name of an output: a copy where the network hands out an input, or a view of one."""
        makers, copy = {op.output: op for op in self.ops}, f"{name} returned"
        source = name
        while source in makers and makers[source].kind == "view":
            (source,) = makers[source].inputs
        if source in makers or copy in makers:
            return copy if copy in makers else name
        self.ops.append(Op(copy, "affine", (name,), copy, (), {"scale": 1.0, "shift": 0.0}))
        self.values[copy] = replace(self.values[name], name=copy)
        return copy

    def drop_unread_moves(self, outputs: Collection[str]) -> None:
        """Leave out moves of values that nothing reads: who reads what they move took it before."""
        read = set(outputs)
        kept: list[Op] = []
        for op in reversed(self.ops):
            if OPERATORS[op.kind].skippable and op.output not in read:
                del self.values[op.output]
                continue
            kept.append(op)
            read.update(op.inputs)
        self.ops = kept[::-1]


def _name_read(param: fx.Node) -> str:
    """The name of the parameter, buffer or held copy of one that an op reads."""
    return str(param.meta.get(HELD, param.target))


def _params(
    module: torch.nn.Module, ops: Sequence[Op], recorded: RecordedCalls, held: Mapping[str, str]
) -> tuple[dict[str, Param], dict[str, Formula]]:
    """The parameters and buffers that ops use, in the order of first use, and the formulas.

    Computed ones come with those that they are made of; `held` are copies of buffers.
    """
    trained = dict(module.named_parameters())
    tensors = {**dict(module.named_buffers()), **trained}
    tensors |= {copy: tensors[name] for copy, name in held.items()}
    used = dict.fromkeys(name for op in ops for name in op.params if name)
    formulas = {name: recorded.formulas[name] for name in used if name in recorded.formulas}
    read = dict.fromkeys(name for formula in formulas.values() for name in formula.names)
    params = {
        name: _computed_param(name, recorded)
        if name in formulas
        else _param(name, tensors[name], torch.float32 if name in trained else tensors[name].dtype)
        for name in {**used, **read}
    }
    return params, formulas


def _param(name: str, tensor: Tensor, dtype: torch.dtype) -> Param:
    """A parameter, as float32, or a buffer as it is."""
    nbytes = tensor.numel() * dtype.itemsize
    return Param(name, tuple(tensor.shape), nbytes, tensor.requires_grad, _name(dtype))


def _computed_param(name: str, recorded: RecordedCalls) -> Param:
    value, formula = recorded.values[name], recorded.formulas[name]
    nbytes = value.numel() * torch.float32.itemsize
    trains = bool(formula.reaches)
    return Param(name, tuple(value.shape), nbytes, trains, computed_from=formula.names)


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


def _value_of(name: str, node: fx.Node) -> Value:
    return _value(name, tuple(node.meta["value"].shape), node.meta["axes"])


def _value(name: str, shape: Shape, axes: Shape) -> Value:
    """A value of the shape in which it is stored: maps with their channels last, [N] as [N, 1]."""
    stored = tuple(shape[axes.index(axis)] for axis in range(len(axes)))
    return Value(name, stored if len(stored) > 1 else (*stored, 1), axes)
