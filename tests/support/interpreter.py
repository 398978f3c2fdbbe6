"""Mends Triton's interpreter (3.6 to 3.9) so that it computes what a GPU would.

As shipped, it treats bfloat16 and float8 data as raw bits in arithmetic, dots, casts, reductions
and scans; it lets a loop bound fail on NumPy >= 2.4; it gives the booleans of a comparison the
type of what was compared, and makes constants of products of a constant and a tensor, both of which
Triton 3.9 refuses; it ignores misspelt launch arguments; and its state is
global, so launches from two threads collide. It also spends most of its time on tests for overflow
whose outcome it drops. `install` replaces the methods concerned, and those of
`quick_types` and `quick_operands`.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from tests.support import quick_operands, quick_types

Array = np.ndarray[Any, Any]
Handle = interpreter.TensorHandle
Builder = interpreter.InterpreterBuilder

FLOAT8: Final = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
FLOAT8_MAX: Final = {tl.float8e4nv: 448.0, tl.float8e5: 57344.0}
BOOLEAN: Final = np.dtype(np.bool_)
NARROW: Final = frozenset(dtype.name for dtype in (tl.bfloat16, *FLOAT8))
LAUNCH_OPTIONS: Final = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "enable_fp_fusion"}
)
OPTIONS: Final = interpreter.InterpreterOptions(sanitize_overflow=False)  # its assertions are off
LAUNCH_LOCK: Final = threading.RLock()

STOCK_BINARY: Final = Builder.binary_op
STOCK_UNARY: Final = Builder.unary_op
STOCK_TERNARY: Final = Builder.ternary_op
STOCK_FMA: Final = Builder.create_fma
STOCK_DOT: Final = Builder.create_dot
STOCK_CAST: Final = Builder.cast_impl
STOCK_SUM: Final = interpreter.ReduceOps.sum
STOCK_MIN_MAX: Final = interpreter.ReduceOps.min_max
STOCK_CUMSUM: Final = interpreter.ScanOps.cumsum
STOCK_PATCH_TENSOR: Final = interpreter._patch_lang_tensor
STOCK_NP_DTYPE: Final = interpreter._get_np_dtype
STOCK_LAUNCH: Final = interpreter.GridExecutor.__call__
CONSTEXPR_OPERATORS: Final = (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv"),
    *("mod", "pow", "rpow", "lshift", "rshift", "and", "or", "xor"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)
STOCK_CONSTEXPR: Final = {
    f"__{name}__": getattr(tl.constexpr, f"__{name}__") for name in CONSTEXPR_OPERATORS
}
NP_DTYPES: Final[dict[str, np.dtype[Any]]] = {}


def is_narrow(dtype: tl.dtype) -> bool:
    """Whether the interpreter keeps this float type as raw integer bits."""
    return dtype.name in NARROW


def holds_bits(handle: Handle) -> bool:
    """Whether a handle's data are raw bits, and not a comparison's booleans."""
    return is_narrow(handle.dtype.scalar) and handle.data.dtype != np.bool_


def decode(data: Array, dtype: tl.dtype) -> Array:
    """Raw bits of a narrow float type as float32; other data unchanged."""
    if dtype == tl.bfloat16:
        bits = np.asarray(data).view(np.uint16).astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    if dtype in FLOAT8:
        raw = torch.from_numpy(np.array(data, dtype=np.uint8, order="C", ndmin=1))
        return raw.view(FLOAT8[dtype]).to(torch.float32).numpy().reshape(np.shape(data))
    return data


def encode(values: Array, dtype: tl.dtype) -> Array:
    """Values rounded to nearest even as the raw bits of a narrow type; other types unchanged."""
    if dtype == tl.bfloat16:
        return _encode_bfloat16(np.asarray(values, dtype=np.float32))
    if dtype in FLOAT8:
        return _encode_float8(np.asarray(values, dtype=np.float32), dtype)
    return values


def _encode_bfloat16(values: Array) -> Array:
    bits = np.ascontiguousarray(values).view(np.uint32)
    tie = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = ((bits + np.uint32(0x7FFF) + tie) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), rounded).reshape(values.shape)


def _encode_float8(values: Array, dtype: tl.dtype) -> Array:
    limit = FLOAT8_MAX[dtype]  # Hopper converts with satfinite
    clipped = np.where(np.isnan(values), values, np.clip(values, -limit, limit))
    raw = torch.from_numpy(np.ascontiguousarray(clipped, dtype=np.float32)).to(FLOAT8[dtype])
    return raw.view(torch.uint8).numpy().reshape(values.shape)


def _decoded(handle: Handle) -> Array:
    return decode(handle.data, handle.dtype.scalar) if holds_bits(handle) else handle.data


def _binary_op(self: Builder, lhs: Handle, rhs: Handle, op: Callable[..., Array]) -> Handle:
    kind, left, right = lhs.dtype.scalar, lhs.data, rhs.data
    if kind.name in NARROW and left.dtype is not BOOLEAN and holds_bits(rhs):
        result = op(decode(left, kind), decode(right, rhs.dtype.scalar))
        if result.dtype is not BOOLEAN:
            result = encode(result, kind)
    elif left.dtype is BOOLEAN and right.dtype is BOOLEAN:
        result = STOCK_BINARY(self, lhs, rhs, op).data
    else:
        result = op(left, right)
        if not interpreter._validate_np_data_size(result, kind):
            result = result.astype(interpreter._get_np_dtype(kind))
    return Handle(result, tl.int1 if result.dtype is BOOLEAN else kind)


def _unary_op(self: Builder, arg: Handle, op: Callable[..., Array]) -> Handle:
    if not holds_bits(arg):
        return STOCK_UNARY(self, arg, op)
    return Handle(encode(op(_decoded(arg)), arg.dtype.scalar), arg.dtype.scalar)


def _ternary_op(self: Builder, a: Handle, b: Handle, c: Handle, op: Callable[..., Array]) -> Handle:
    if op is not np.clip or not is_narrow(c.dtype.scalar):
        return STOCK_TERNARY(self, a, b, c, op)
    result = np.clip(_decoded(a), _decoded(b), _decoded(c))
    return Handle(encode(result, c.dtype.scalar), c.dtype.scalar)


def _create_fma(self: Builder, x: Handle, y: Handle, z: Handle) -> Handle:
    if not is_narrow(z.dtype.scalar):
        return STOCK_FMA(self, x, y, z)
    result = _decoded(x) * _decoded(y) + _decoded(z)
    return Handle(encode(result, z.dtype.scalar), z.dtype.scalar)


def _create_fabs(self: Builder, arg: Handle) -> Handle:
    return self.unary_op(arg, np.abs)


def _create_dot(self: Builder, a: Handle, b: Handle, acc: Handle, *precision: Any) -> Handle:
    """Products in float64, as BLAS sums rows of float32 in other orders by where they lie."""
    if not (a.dtype.scalar.is_floating() and b.dtype.scalar.is_floating()):
        return STOCK_DOT(self, a, b, acc, *precision)
    products = np.matmul(_decoded(a).astype(np.float64), _decoded(b).astype(np.float64))
    return Handle(products.astype(acc.data.dtype) + acc.data, acc.dtype.scalar)


def _cast(self: Builder, src: Handle, dst_type: tl.dtype) -> Handle:
    source, target = src.dtype.scalar, dst_type.scalar
    if source == target and src.data.dtype != np.bool_:
        return Handle(src.data, target)
    if not (holds_bits(src) or is_narrow(target)):
        return STOCK_CAST(self, src, dst_type)
    values = _decoded(src) if holds_bits(src) else np.asarray(src.data).astype(np.float32)
    if is_narrow(target):
        return Handle(encode(values, target), target)
    return Handle(values.astype(interpreter._get_np_dtype(target)), target)


def _create_fp_to_fp(self: Builder, src: Handle, dst_type: tl.dtype, rounding: Any) -> Handle:
    source, target = src.dtype.scalar, dst_type.scalar
    truncates = rounding == interpreter._ir.ROUNDING_MODE.RTZ
    if not truncates and (is_narrow(source) or is_narrow(target)):
        return _cast(self, src, dst_type)
    bits = interpreter._convert_float(src.data, source, target, rounding)
    return Handle(bits.view(interpreter._get_np_dtype(dst_type)), target)


def _get_bf16(self: Builder, value: float) -> Handle:
    return Handle(encode(np.array([value], np.float32), tl.bfloat16), tl.bfloat16)


def _create_minnumf(self: Builder, lhs: Handle, rhs: Handle) -> Handle:
    return self.binary_op(lhs, rhs, np.fmin)


def _create_maxnumf(self: Builder, lhs: Handle, rhs: Handle) -> Handle:
    return self.binary_op(lhs, rhs, np.fmax)


def _sum(self: interpreter.ReduceOps, x: tl.tensor) -> tl.tensor:
    if not is_narrow(x.dtype):
        return STOCK_SUM(self, x)
    total = np.sum(_decoded(x.handle), axis=self.axis, keepdims=self.keep_dims)
    return self.to_tensor(encode(total, x.dtype), x.dtype)


def _min_max(
    self: interpreter.ReduceOps,
    x: Any,
    val_reduce_op: Callable[..., Array] | None,
    idx_reduce_op: Callable[..., Array] | None = None,
) -> Any:
    first = x[0] if isinstance(x, tuple) else x
    if not is_narrow(first.dtype):
        return STOCK_MIN_MAX(self, x, val_reduce_op, idx_reduce_op)
    values, how = _decoded(first.handle), {"axis": self.axis, "keepdims": self.keep_dims}
    results = []
    if val_reduce_op is not None:
        results.append(
            self.to_tensor(encode(val_reduce_op(values, **how), first.dtype), first.dtype)
        )
    if idx_reduce_op is not None:
        results.append(self.to_tensor(idx_reduce_op(values, **how), tl.int32))
    return results[0] if len(results) == 1 else tuple(results)


def _cumsum(self: interpreter.ScanOps, x: tl.tensor) -> list[tl.tensor]:
    if not is_narrow(x.dtype):
        return STOCK_CUMSUM(self, x)
    sums = np.cumsum(_decoded(x.handle), axis=self.axis)
    return [self.to_tensor(encode(sums, x.dtype), x.dtype)]


def _patch_tensor(tensor: type, scope: Any) -> None:
    STOCK_PATCH_TENSOR(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(np.ravel(self.handle.data)[0]))


def _np_dtype(dtype: tl.dtype) -> np.dtype[Any]:
    name = dtype.scalar.name
    if name not in NP_DTYPES:
        NP_DTYPES[name] = STOCK_NP_DTYPE(dtype)
    return NP_DTYPES[name]


def _launch(self: interpreter.GridExecutor, *args: Any, **kwargs: Any) -> None:
    unknown = [name for name in kwargs if name not in self.arg_names and name not in LAUNCH_OPTIONS]
    if unknown:
        raise TypeError(f"{self.fn.__name__}: unknown keyword argument(s) {unknown}")
    with LAUNCH_LOCK, np.errstate(all="ignore"):
        try:
            STOCK_LAUNCH(self, *args, **kwargs)
        finally:
            quick_types.PATCHED.clear()


def _deferring(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The operator of a constant, which leaves an operand that is a tensor to the tensor's own."""

    def operator(self: tl.constexpr, other: Any) -> Any:
        return NotImplemented if isinstance(other, tl.tensor) else stock(self, other)

    return operator


def install() -> None:
    """Put the mended methods in place; calling it again changes nothing."""
    quick_types.install()
    quick_operands.install()
    for name, stock in STOCK_CONSTEXPR.items():
        setattr(tl.constexpr, name, _deferring(stock))
    Builder.binary_op = _binary_op
    Builder.unary_op = _unary_op
    Builder.ternary_op = _ternary_op
    Builder.cast_impl = _cast
    Builder.create_fma = _create_fma
    Builder.create_fabs = _create_fabs
    Builder.create_dot = _create_dot
    Builder.create_fp_to_fp = _create_fp_to_fp
    Builder.create_minnumf = _create_minnumf
    Builder.create_maxnumf = _create_maxnumf
    Builder.get_bf16 = _get_bf16
    interpreter.ReduceOps.sum = _sum
    interpreter.ReduceOps.min_max = _min_max
    interpreter.ScanOps.cumsum = _cumsum
    interpreter._patch_lang_tensor = _patch_tensor
    interpreter._get_np_dtype = _np_dtype
    interpreter.interpreter_builder.options = OPTIONS
    interpreter.GridExecutor.__call__ = _launch
