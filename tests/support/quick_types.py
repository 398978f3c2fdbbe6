"""Spares Triton's interpreter (3.6 to 3.9) work whose outcome it has had before.

As shipped, every operation builds the type of its result anew, and with it a dozen constants of
the shape, and every launch searches the language for the functions that it exchanges. `install`
replaces the methods concerned by others that return the same.
"""

from collections.abc import Callable
from typing import Any, Final

import triton.language as tl
from triton.runtime import interpreter

Handle = interpreter.TensorHandle

BLOCKS: Final[dict[Any, tl.block_type]] = {}  # by the name of the elements' type, then the shape
PATCHED: Final[list[str]] = []
EXCHANGES: Final[dict[tuple[str, ...], list[tuple[Any, str, Any]]]] = {}  # by modules patched
INTEGERS: Final = frozenset((*tl.dtype.SINT_TYPES, *tl.dtype.UINT_TYPES))

PLAIN: Final = frozenset((bool, int, float, type(None), tl.dtype, tl.block_type))

STOCK_BLOCK: Final = tl.block_type.__init__
STOCK_HANDLE: Final = Handle.__init__
STOCK_EQUAL: Final = tl.dtype.__eq__
STOCK_POINTER_EQUAL: Final = tl.pointer_type.__eq__
STOCK_BLOCK_EQUAL: Final = tl.block_type.__eq__
STOCK_UNWRAP: Final = tl.core._unwrap_if_constexpr
STOCK_PATCH_LANG: Final = interpreter._patch_lang


def _key(kind: type, element: Any, shape: Any) -> Any:
    """What tells types of blocks apart; None where only the stock method can judge the shape."""
    sizes = shape.values if type(shape) is tl.tuple else shape
    if kind is not tl.block_type or type(sizes) not in (list, tuple):
        return None
    plain = tuple([size.value if type(size) is tl.constexpr else size for size in sizes])
    for size in plain:
        if type(size) is not int:
            return None
    return element.name, plain


def _new_block(kind: type, element: Any = None, shape: Any = None, *_: Any, **__: Any) -> Any:
    """The type of blocks of this shape that was made before, or one to be filled."""
    known = BLOCKS.get(_key(kind, element, shape))
    return object.__new__(kind) if known is None else known


def _init_block(self: tl.block_type, element_ty: tl.dtype, shape: Any) -> None:
    if "name" in self.__dict__:
        return
    STOCK_BLOCK(self, element_ty, shape)
    key = _key(type(self), element_ty, shape)
    if key is not None:
        BLOCKS[key] = self


def _init_tensor(self: tl.tensor, handle: Handle, kind: tl.dtype) -> None:
    """Take the constants of the shape from the first tensor of the type."""
    parts = kind.__dict__.get("parts")
    if parts is None:
        sizes = [tl.constexpr(size) for size in kind.shape] if kind.is_block() else []
        numel = kind.numel if kind.is_block() else 1
        parts = kind.parts = tl.tuple(sizes), tl.constexpr(numel), kind.scalar
    self.handle = handle
    self.type = kind
    self.shape, self.numel, self.dtype = parts


def _init_handle(self: Handle, data: Any, dtype: tl.dtype, attr: Any = None) -> None:
    """Without the stock method's check where the data's items take no more than a type's bits."""
    limit = dtype.__dict__.get("item_nbytes")
    if limit is None:
        STOCK_HANDLE(self, data, dtype)
        pointer = isinstance(dtype, tl.pointer_type)
        dtype.item_nbytes = float("inf") if pointer else max(1, dtype.primitive_bitwidth // 8)
    elif data.itemsize > limit:
        STOCK_HANDLE(self, data, dtype)
    self.data = data
    self.dtype = dtype
    self.attr = {} if attr is None else attr


def _same_or(stock: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def equal(self: Any, other: Any) -> bool:
        return self is other or stock(self, other)

    return equal


def _is_int(self: tl.dtype) -> bool:
    return self.name in INTEGERS


def _unwrap(value: Any) -> Any:
    """The value of a constant; others as they are."""
    kind = type(value)
    if kind is tl.tensor or kind in PLAIN:
        return value
    return value.value if kind is tl.constexpr else STOCK_UNWRAP(value)


def _patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Exchange a builtin of the language, without the stock check that it is given a semantic."""
    inner, semantic = getattr(member, "__wrapped__", member), interpreter.interpreter_semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return inner(*args, **kwargs)

    scope.set_attr(obj, name, call)


def _own_type(self: tl.dtype, builder: Any) -> tl.dtype:
    return self


def _patch_lang(fn: Callable[..., Any]) -> Any:
    """Exchange what the stock method exchanged for a module when it was called in the same order.

    `PATCHED` holds the modules of the functions that the running launch has called.
    """
    if fn.__module__ in PATCHED:
        return interpreter._LangPatchScope()
    PATCHED.append(fn.__module__)
    exchanges = EXCHANGES.get(tuple(PATCHED))
    if exchanges is None:
        scope = STOCK_PATCH_LANG(fn)
        for kind in (tl.dtype, tl.pointer_type, tl.block_type):
            scope.set_attr(kind, "to_ir", _own_type)  # the interpreter's types are the language's
        changed = [(obj, name, vars(obj)[name]) for obj, name, _ in scope._changes]
        EXCHANGES[tuple(PATCHED)] = changed
        return scope
    scope = interpreter._LangPatchScope()
    for obj, name, value in exchanges:
        if vars(obj).get(name) is not value:
            scope.set_attr(obj, name, value)
    return scope


def install() -> None:
    """Put the quick methods in place; calling it again changes nothing."""
    tl.block_type.__new__ = _new_block
    tl.block_type.__init__ = _init_block
    tl.tensor.__init__ = _init_tensor
    Handle.__init__ = _init_handle
    for kind, stock in (
        (tl.dtype, STOCK_EQUAL),
        (tl.pointer_type, STOCK_POINTER_EQUAL),
        (tl.block_type, STOCK_BLOCK_EQUAL),
    ):
        kind.__eq__ = _same_or(stock)
    tl.dtype.is_int = _is_int
    tl.core._unwrap_if_constexpr = _unwrap
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang = _patch_lang
