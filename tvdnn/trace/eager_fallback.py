"""The eager fallback: a submodule that runs by torch's own code and autograd, as one op."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.fx import Node, Proxy
from torch.fx.node import map_arg
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves, tree_map

from ..graph.network import channels_last_axes
from ..ops.eager_fallback import Argument
from ..ops.traced_op import TracedOp, UnsupportedCallError, axes_of
from .source_lines import FOREIGN
from .state.functionalize import storage_of
from .state.tape import COUNTER, OperatorWatch

REACHED = "reached"  # the entry of a node's `meta` of what a module's gradient reaches


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether the gradient of a module's result reaches its maps and its parameters, in order."""

    maps: tuple[bool, ...]
    params: tuple[bool, ...]

    @property
    def anything(self) -> bool:
        return any(self.maps) or any(self.params)


class EagerEffects(OperatorWatch):
    """A context that notes the effects of a call of `module` which a second call would repeat.

    `tracked` are the names of the buffers that batch normalizations track: those a second call
    changes in copies without values. Raises TypeError for indices that are no whole numbers: torch
    2.11 takes them on the meta device.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module
        named = dict(module.named_buffers())
        self.tracked = tuple(name for name in _tracked_buffers(module) if name in named)
        self._statistics = {storage_of(named[name]): name for name in self.tracked}
        self._read = ""  # a name of statistics that more than a normalization reads or writes
        self._before: dict[str, tuple[int, int]] = {}
        self._after: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> "EagerEffects":
        self._before = self._buffers()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._after = self._buffers()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        for argument, given in zip(func._schema.arguments, args, strict=False):
            is_index = argument.name == "indices" and isinstance(given, Tensor)
            if is_index and given.is_floating_point():
                raise TypeError(f"{func} takes indices that are whole numbers, not {given.dtype}")
        if self._statistics and "batch_norm" not in str(func):
            given = (x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor))
            named = (self._statistics.get(storage_of(each), "") for each in given)
            counts = func is torch.ops.aten.add_.Tensor
            read = (each for each in named if each and not (counts and each.endswith(COUNTER)))
            self._read = next(read, self._read)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def found(self, given: Iterable[Tensor]) -> str | None:
        """The effect in words, of a call on these tensors; None where there is none."""
        effect = f"changes its buffer {changed}" if (changed := self._changed()) else ""
        effect = effect or _hooks_of(self._module)
        if self.drawn_by:
            effect = f"draws random numbers ({self.drawn_by})"
        if effect:
            return f"{effect}, which would happen a second time"
        if self._read:
            return f"reads or writes {self._read}, which a batch normalization changes"
        counts = Counter(map(storage_of, {id(each): each for each in given}.values()))
        if any(counts[storage] > 1 for storage in self.written):
            return "writes one of two maps that share memory"
        return None

    def _changed(self) -> str:
        """The name of a buffer that the call has changed, or may change as it runs by torch."""
        buffers, written = dict(self._module.named_buffers()), self.written.keys()
        replaced = (n for n in self.tracked if self._after.get(n, ())[:1] != self._before[n][:1])
        changed = (
            name
            for name, buffer in buffers.items()
            if self._after[name] != self._before.get(name) or storage_of(buffer) in written
        )
        others = (name for name in changed if name not in self.tracked)
        unknown = (
            f"{path}.running_mean".lstrip(".")
            for path, _ in _tracking(self._module, by_copies=False)
        )
        return next(chain(replaced, others, unknown), "")

    def _buffers(self) -> dict[str, tuple[int, int]]:
        return {name: (id(b), b._version) for name, b in self._module.named_buffers()}


def _tracking(module: torch.nn.Module, by_copies: bool) -> Iterator[tuple[str, _BatchNorm]]:
    """The batch normalizations that track statistics, and may do so in copies when called again.

    Or the others: those of several processes, and those that read the value of their counter.
    """
    for path, each in module.named_modules():
        if isinstance(each, _BatchNorm) and each.training and each.running_mean is not None:
            is_other = isinstance(each, torch.nn.SyncBatchNorm) or each.momentum is None
            if by_copies != is_other:
                yield path, each


def _tracked_buffers(module: torch.nn.Module) -> Iterator[str]:
    for path, each in _tracking(module, by_copies=True):
        yield from (f"{path}.{name}".lstrip(".") for name, _ in each.named_buffers(recurse=False))


def _hooks_of(module: torch.nn.Module) -> str:
    """What hooks of users do: those of the module, and of modules inside it but torch's own."""
    for path, each in module.named_modules():
        hooks = (*each._forward_hooks.values(), *each._forward_pre_hooks.values())
        own = [hook for hook in hooks if not path or not type(hook).__module__.startswith("torch.")]
        if own:
            return f"runs forward hooks{f' of {path}' if path else ''}"
    return ""


class UnreadResult:
    """Stands for a tensor beside the one that a module which runs by torch hands on.

    Whatever is done with it calls `refuse`, which raises. It says that it is a tensor.
    """

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        object.__setattr__(self, "_refuse", refuse)

    def _refused(self, *_: object, **__: object) -> Any:
        object.__getattribute__(self, "_refuse")()

    @property
    def __class__(self) -> Any:
        return Tensor

    @__class__.setter
    def __class__(self, kind: Any) -> None:
        self._refused()

    __bool__ = __len__ = __iter__ = __getitem__ = __contains__ = _refused
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refused
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __abs__ = __rtruediv__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _refused
    __str__ = __repr__ = __format__ = __setattr__ = __getattr__ = _refused

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        next(each for each in tree_leaves((args, kwargs)) if type(each) is cls)._refused()


def reached(node: Node, params: Iterable[Tensor], result: Callable[[Any, Any], Any]) -> Reached:
    """What the gradient of a module's `result` reaches, a function of the node's arguments.

    Torch leaves all else without a gradient. Where its autograd fails on the meta device, all that
    trains is reached.
    """
    sources = node.all_input_nodes
    leaves = {each: _leaf_like(each) for each in sources}
    asked = [*leaves.values(), *params]
    trained = [node.meta["graded"] and each.requires_grad for each in asked]
    if any(trained):
        with torch.enable_grad(), suppress(*FOREIGN):
            # A module may write over its arguments, which leaves do not take.
            args, kwargs = map_arg((node.args, node.kwargs), lambda each: leaves[each].clone())
            trained = _depends(result(args, kwargs), asked, trained)
    return Reached(tuple(trained[: len(sources)]), tuple(trained[len(sources) :]))


def _leaf_like(source: Node) -> Tensor:
    value: Tensor = source.meta["value"].detach()
    carries = bool(source.meta["carries"]) and value.is_floating_point()
    return torch.empty_like(value).requires_grad_(carries)


def _depends(result: Tensor, asked: Sequence[Tensor], trained: Sequence[bool]) -> list[bool]:
    """Of each tensor that trains whether the gradient of the result reaches it."""
    if not result.requires_grad:
        return [False] * len(asked)
    leaves = [each for each, trains in zip(asked, trained, strict=True) if trains]
    found = torch.autograd.grad(result, leaves, torch.ones_like(result), allow_unused=True)
    reaches = (each is not None for each in found)
    return [trains and next(reaches) for trains in trained]


class _HandedOn:
    """The place of the tensor that a module hands on, among its results."""


def among_results(
    result: Any, refuse: Callable[[], NoReturn]
) -> tuple[int, tuple[Any, ...]] | None:
    """Where the tensor is that a module hands on in its tuple, and what stands in the tuple.

    It is the only tensor beside Nones, or the first element: recurrent layers and attention return
    states and weights behind it. None for results of other kinds.
    """
    if type(result) is not tuple or not result:
        return None
    places = [at for at, each in enumerate(result) if each is not None]
    place = places[0] if len(places) == 1 else 0
    if not isinstance(result[place], Tensor):
        return None
    known: dict[int, Any] = {id(result[place]): _HandedOn()}

    def placed(each: Any) -> Any:
        is_tensor = isinstance(each, Tensor)
        return known.setdefault(id(each), UnreadResult(refuse)) if is_tensor else each

    return place, tree_map(placed, result)


def as_returned(proxy: Proxy, made: Any) -> Any:
    """What the network's code gets of a call: the proxy `made`, or a tuple with it."""
    among = proxy.node.meta.get("among")
    if among is None:
        return made
    return tree_map(lambda each: made if type(each) is _HandedOn else each, among[1])


def eager_call(
    node: Node,
    params: tuple[Node, ...],
    state: tuple[Node, ...],
    attrs: Mapping[str, Any],
    effects: str | None,
) -> TracedOp:
    """The op of a submodule that runs by torch, on maps, and makes one, beside others or not.

    The attributes of the op are `attrs`, the arguments, and the shapes and stored order of all
    maps. It changes the buffers `state`. Raises UnsupportedCallError where the submodule takes or
    makes others, or where it has `effects`: its forward runs again in backward, on copies of maps.
    """
    module = type(attrs["module"]).__name__
    sources = node.all_input_nodes
    if any(source.op == "get_attr" for source in sources):
        raise UnsupportedCallError(
            f"{module} of a tensor that is no map (one that runs by torch takes maps)"
        )
    if any(isinstance(each, (list, dict)) for each in (*node.args, *node.kwargs.values())):
        raise UnsupportedCallError(
            f"{module} of a list or dict (one that runs by torch takes none)"
        )
    values, result = [source.meta["value"] for source in sources], node.meta["value"]
    if not values or not all(isinstance(each, Tensor) for each in (*values, result)):
        raise UnsupportedCallError(f"{module} that makes no tensor whose shape is known")
    samples = {tuple(each.shape[:1]) for each in (*values, result)}
    if not result.is_floating_point() or len(samples) > 1:
        raise UnsupportedCallError(f"{module} that makes no floating-point tensor of the batch")
    if effects is not None:
        raise UnsupportedCallError(f"{module} that {effects}")
    axes = channels_last_axes(4) if result.dim() == 4 else tuple(range(result.dim()))
    numbers: Any = {source: Argument(number) for number, source in enumerate(sources)}
    given: Any = (node.args, node.kwargs)
    takes = tuple((tuple(x.meta["value"].shape), axes_of(x)) for x in sources)
    forms: dict[str, Any] = {"takes": takes, "makes": (tuple(result.shape), axes)}
    forms |= {
        "reached": node.meta[REACHED],
        "arguments": map_arg(given, numbers.__getitem__),
        "among": (node.meta.get("among") or [None])[0],
    }
    return TracedOp("opaque", tuple(sources), params, {**attrs, **forms}, axes, state)
