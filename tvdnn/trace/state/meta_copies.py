"""Meta copies: tensors without data in the place of parameters and buffers during a trace."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .attribute_tensors import AttributeTensor
from .constants import same_bits
from .functionalize import storage_of

REGISTRIES = ("_parameters", "_buffers")
Forwards = Callable[[nn.Module], Callable[..., Any] | None]


@dataclass(frozen=True, slots=True)
class _Held:
    """A dict, list or set that a module holds, its items at some time, and the attribute's name."""

    container: Any
    items: tuple[Any, ...]
    attribute: str

    def changed(self) -> bool:
        now = _items(self.container)
        same = len(now) == len(self.items) and all(map(_is_same, now, self.items))
        return not same

    def restore(self) -> None:
        self.container.clear()
        if isinstance(self.container, list):
            self.container.extend(self.items)
        else:
            self.container.update(self.items)


class MetaCopies:
    """A context in which meta copies are the parameters and buffers of `net`.

    A tensor has one meta copy, whatever the number of its names. `tensors` are the meta copies by
    the names of named_parameters and named_buffers. `names` are these names by the ids of tensors
    and of their meta copies. `forwards` returns the function that runs in the place of a module's
    forward, or None. On leaving, every attribute of every module is as it was on entering.
    """

    def __init__(self, net: nn.Module, forwards: Forwards = lambda _: None) -> None:
        self.net, self._forwards = net, forwards
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[int, str] = {}
        self._types: dict[str, torch.dtype] = {}  # of the tensors that meta copies stand for
        self._storages: dict[str, int | None] = {}  # of meta copies when they were made
        self._by_storage: dict[int | None, str] = {}
        self._copy_of: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []  # the tensors whose ids are keys above
        self._paths = {module: path for path, module in net.named_modules()}
        self._before: dict[nn.Module, list[_Held]] = {}
        self._given: dict[nn.Module, list[_Held]] = {}
        self._attributes: dict[int, str] = {}  # attributes that are tensors, by their storages
        # Attributes that are tensors without a gradient, by the ids of their copies.
        self.attribute_tensors: dict[int, AttributeTensor] = {}
        self.attribute_copies: list[Tensor] = []
        self._originals: list[Tensor] = []  # of which those are copies
        # The storages of parameters and buffers, which a step may change.
        others = (each for each in (*net.parameters(), *net.buffers()) if not is_lazy(each))
        self._of_others = {*map(storage_of, others)} - {None}

    def __enter__(self) -> "MetaCopies":
        self._name_tensors(self.net, prefix="")
        try:
            for module in self._paths:
                self._swap(module)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._restore()
        except KeyboardInterrupt:  # came between two modules
            self._restore()
            raise

    def adopt(self, module: nn.Module, change: Callable[[], object]) -> None:
        """Let `change` give a lazy module its parameters, and make meta copies of them."""
        for held in self._before[module]:
            held.restore()
        change()
        path = self._paths[module]
        self._name_tensors(module, prefix=f"{path}." if path else "")
        self._swap(module)

    def changes(self) -> list[tuple[nn.Module, str]]:
        """The modules' attributes that differ from those on entering."""
        found = (
            (module, held.attribute or name)
            for module, each in self._given.items()
            for held in each
            if held.changed()
            for name in _names_changed(held)
        )
        return list(dict.fromkeys(found))

    def attribute_of(self, tensor: Tensor) -> str | None:
        """The attribute of a module whose storage a tensor has; None for a meta copy's storage.

        A list of a module's may hold the parameters themselves.
        """
        key = storage_of(tensor)
        held = (self.names[id(each)] for each in self._kept if storage_of(each) == key)
        beside = next((f"{name}, held beside it," for name in held), None)
        return self._attributes.get(key or 0, beside)

    def attribute_copy(self, module: nn.Module, attribute: str) -> Tensor | None:
        """The copy of a tensor that was an attribute of a module on entering."""
        for copy in reversed(self.attribute_copies):
            own = self.attribute_tensors[id(copy)]
            if own.module is module and own.attribute == attribute:
                return copy
        return None

    def written_attributes(self) -> Iterator[str]:
        """The attributes on the CPU whose values have changed, as NumPy may change them."""
        for copy, value in zip(self.attribute_copies, self._originals, strict=True):
            if copy.device.type == "cpu" and not same_bits(copy, value):
                yield self.attribute_tensors[id(copy)].name

    def is_recast(self, name: str) -> bool:
        """Whether the tensor that a meta copy stands for is of another type."""
        return self._types[name] != self.tensors[name].dtype

    def moved(self) -> list[str]:
        """The names of the meta copies whose bytes were exchanged."""
        return [
            n for n, storage in self._storages.items() if storage_of(self.tensors[n]) != storage
        ]

    def name_of_storage(self, tensor: Tensor) -> str | None:
        """The name of the meta copy that a tensor is, or whose first bytes it has."""
        name = self.names.get(id(tensor))
        is_copy = name is not None and self.tensors[name] is tensor
        return name if is_copy else self._by_storage.get(storage_of(tensor))

    def named(self) -> dict[str, Tensor]:
        """The meta copies of parameters and buffers; `tensors` may get others."""
        return {name: self.tensors[name] for name in self._types}

    def viewed(self, tensor: Tensor) -> str | None:
        """The parameter or buffer of which a tensor is a view of all elements in order.

        None for another tensor, and for a view that stops the gradient.
        """
        base = tensor._base
        if base is None or id(base) not in self.names or id(tensor) in self.names:
            return None
        dense = tensor.is_contiguous() and base.is_contiguous()
        whole = dense and tensor.shape.numel() == base.shape.numel()
        carries = tensor.grad_fn is not None or not base.requires_grad
        return self.names[id(base)] if whole and carries else None

    @property
    def modules(self) -> Collection[nn.Module]:
        """The network and its submodules."""
        return self._paths.keys()

    def path(self, module: nn.Module) -> str:
        """The path of a module below the traced one."""
        path: str = self._paths.get(module, "")
        return path

    def _name_tensors(self, module: nn.Module, *, prefix: str) -> None:
        """Make a meta copy, float32 for floats, for each parameter and buffer that has a shape."""
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
            if is_lazy(tensor) or id(tensor) in self.names:
                continue
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            copy = empty_like(tensor, dtype)
            if isinstance(tensor, nn.Parameter):
                copy = nn.Parameter(copy, requires_grad=tensor.requires_grad)
            self._copy_of[id(tensor)] = copy
            self.tensors[prefix + name] = copy
            self._types[prefix + name] = tensor.dtype
            self._storages[prefix + name] = storage = storage_of(copy)
            self._by_storage.setdefault(storage, prefix + name)
            self.names[id(copy)] = self.names[id(tensor)] = prefix + name
            self._kept.append(tensor)

    def _swap(self, module: nn.Module) -> None:
        """Note the attributes of a module, put meta copies in, and note them again."""
        self._before[module] = list(_held(module))
        entries = module.__dict__
        for registry in REGISTRIES:
            for name, tensor in entries[registry].items():
                entries[registry][name] = self._copy_of.get(id(tensor), tensor)
        for name, value in entries.items():
            if isinstance(value, Tensor) and value.layout is torch.strided:  # which may be written
                is_others = storage_of(value) in self._of_others
                copy = empty_like(value, value.dtype) if is_others else value.detach().clone()
                entries[name] = copy
                path = f"{self._paths[module]}.{name}".lstrip(".")
                self._attributes[storage_of(copy) or 0] = path
                if not value.requires_grad and not is_others:
                    self.attribute_tensors[id(copy)] = AttributeTensor(module, name, path)
                    self.attribute_copies.append(copy)
                    self._originals.append(value)
        forward = self._forwards(module)
        if forward is not None:
            entries["forward"] = forward
        self._given[module] = list(_held(module))

    def _restore(self) -> None:
        for each in self._before.values():
            for held in each:
                if held.changed():
                    held.restore()


def empty_like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A meta tensor laid out as another; torch.empty_like takes 0.1 ms where that one is meta."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")


def _held(module: nn.Module) -> Iterator[_Held]:
    """A module's __dict__, and the containers in it."""
    yield _Held(module.__dict__, _items(module.__dict__), "")
    for name, value in list(module.__dict__.items()):
        for container in _containers(value, depth=4):
            yield _Held(container, _items(container), name)


def _containers(value: Any, depth: int) -> Iterator[Any]:
    if not depth:
        return
    if isinstance(value, (dict, list, set)):
        yield value
    if isinstance(value, (dict, list, tuple)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _containers(each, depth - 1)


def _items(container: Any) -> tuple[Any, ...]:
    return tuple(container.items() if isinstance(container, Mapping) else container)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two items of a container are the same object, or equal plain values."""
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        return all(map(_is_same, one, other))
    plain = isinstance(one, (bool, int, float, str, bytes)) and type(one) is type(other)
    return plain and bool(one == other)


def _names_changed(held: _Held) -> Iterator[str]:
    """The keys of a module's __dict__ whose entries differ."""
    before, now = dict(held.items) if held.attribute == "" else {}, held.container
    if held.attribute:
        yield held.attribute
        return
    with suppress(TypeError):
        for name in [*before, *(name for name in now if name not in before)]:
            if name not in now or name not in before or not _is_same(now[name], before[name]):
                yield name
