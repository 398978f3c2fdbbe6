"""Fusion: rewrites of a network that name as one op what one kernel computes.

Each rewrite joins an op with the only reader of its output. The inner value is then never written,
and the fused op computes to the bits of the two.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .network import Network, Op

CODED_TAPS = 16  # taps of a window whose maximum a code of four bits can name
ACTIVATIONS = (
    *("leaky_relu", "sigmoid", "tanh", "relu6"),
    *("elu", "silu", "gelu", "gelu_tanh", "hardswish", "hardsigmoid"),
)
QUARTER: Mapping[str, Any] = {
    "kernel": (2, 2),
    "stride": (2, 2),
    "padding": (0, 0),
    "dilation": (1, 1),
}


@dataclass(frozen=True, slots=True)
class Join:
    """An op of kind `first`, and one of kind `second` that alone reads its output, become `fused`.

    `fits` tells of the network and both ops whether they do; `attrs` are the settings that the
    fused op has beside those of the first.
    """

    first: str
    second: str
    fused: str
    fits: Callable[[Network, Op, Op], bool] = lambda *_: True
    attrs: Callable[[Network, Op, Op], Mapping[str, Any]] = lambda *_: {}


def fuse(network: Network) -> Network:
    """The network after every rewrite, each wherever it fits."""
    for rewrite in REWRITES:
        network = rewrite(network)
    return network


def conv2d_relu(network: Network) -> Network:
    """A convolution keeps what its ReLU leaves of it."""
    return _joined(network, Join("conv2d", "relu", "conv2d_relu"))


def conv2d_relu_max_pool2d(network: Network) -> Network:
    """A rectified convolution keeps of every 2x2 window the maximum, and its place in two bits."""
    join = Join("conv2d_relu", "max_pool2d", "conv2d_relu_max_pool2d", _pools_quarters, _inner_map)
    return _joined(network, join)


def linear_relu(network: Network) -> Network:
    """A linear layer keeps what its ReLU leaves of it."""
    return _joined(network, Join("linear", "relu", "linear_relu"))


def linear_relu_dropout(network: Network) -> Network:
    """A rectified linear layer drops elements as it writes them."""

    def attrs(_: Network, __: Op, dropout: Op) -> Mapping[str, Any]:
        return dropout.attrs

    return _joined(network, Join("linear_relu", "dropout", "linear_relu_dropout", attrs=attrs))


def batch_norm_add(network: Network) -> Network:
    """A normalization adds a residual to what it writes; where both terms are such, the later.

    The normalization moves behind its residual. One that shares its running statistics with others
    stays, for these change in the order of the calls.
    """
    readers, places = _only_readers(network), {op.name: n for n, op in enumerate(network.ops)}
    uses = Counter(name for op in network.ops for name in op.params)
    makers = {
        op.output: op
        for op in network.ops
        if op.kind == "batch_norm" and all(uses[name] == 1 for name in op.params[2:] if name)
    }
    fused: dict[str, Op] = {}
    taken: set[str] = set()
    for op in network.ops:
        terms = [makers[name] for name in op.inputs if name in makers and name in readers]
        if op.kind != "add" or not terms:
            continue
        norm = max(terms, key=lambda term: places[term.name])
        (residual,) = (name for name in op.inputs if name != norm.output)
        inputs = (*norm.inputs, residual)
        fused[op.name] = replace(norm, kind="batch_norm_add", inputs=inputs, output=op.output)
        taken.add(norm.name)
    gone = {op.output for op in network.ops if op.name in taken}
    return replace(
        network,
        values={name: value for name, value in network.values.items() if name not in gone},
        ops=tuple(fused.get(op.name, op) for op in network.ops if op.name not in taken),
    )


def batch_norm_relu(network: Network) -> Network:
    """A normalization keeps what its ReLU leaves of it."""
    return _joined(network, Join("batch_norm", "relu", "batch_norm_relu", attrs=_function))


def batch_norm_activation(network: Network) -> Network:
    """Or another function: what it was of is found again from the normalization's input."""
    for name in ACTIVATIONS:
        join = Join("batch_norm", name, "batch_norm_activation", attrs=_function)
        network = _joined(network, join)
    return network


def batch_norm_add_relu(network: Network) -> Network:
    """So it does with a residual."""
    return _joined(network, Join("batch_norm_add", "relu", "batch_norm_add_relu", attrs=_function))


def max_pool2d_codes(network: Network) -> Network:
    """A max pooling notes where its maxima are, so that backward need not read its input."""

    def coded(op: Op) -> Op:
        if op.kind != "max_pool2d" or not _may_code(network, op):
            return op
        return replace(op, kind="max_pool2d_codes")

    return replace(network, ops=tuple(coded(op) for op in network.ops))


REWRITES: tuple[Callable[[Network], Network], ...] = (
    conv2d_relu,
    conv2d_relu_max_pool2d,
    linear_relu,
    linear_relu_dropout,
    batch_norm_add,
    batch_norm_relu,
    batch_norm_activation,
    batch_norm_add_relu,
    max_pool2d_codes,
)


def _joined(network: Network, join: Join) -> Network:
    """The network with `join` made wherever it fits."""
    readers = _only_readers(network)
    fused: dict[str, Op] = {}
    taken: set[str] = set()
    for op in network.ops:
        reader = readers.get(op.output)
        if op.kind != join.first or reader is None or reader.kind != join.second:
            continue
        if join.fits(network, op, reader):
            attrs = {**op.attrs, **join.attrs(network, op, reader)}
            fused[op.name] = replace(op, kind=join.fused, output=reader.output, attrs=attrs)
            taken.add(reader.name)
    gone = {op.output for op in network.ops if op.name in fused}
    return replace(
        network,
        values={name: value for name, value in network.values.items() if name not in gone},
        ops=tuple(fused.get(op.name, op) for op in network.ops if op.name not in taken),
    )


def _only_readers(network: Network) -> dict[str, Op]:
    """By value, the op that alone reads it.

    None for what the network hands out, and for values that stop the gradient: an op fused over
    such a value would let the gradient through.
    """
    readers: dict[str, list[Op]] = {}
    for op in network.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    return {
        name: ops[0]
        for name, ops in readers.items()
        if len(ops) == 1 and name not in network.outputs and name not in network.detached
    }


def _pools_quarters(network: Network, conv: Op, pool: Op) -> bool:
    """Whether the pooling takes 2x2 windows side by side, of whole groups of four channels."""
    _, rows, columns, channels = network.values[conv.output].shape
    pooled = network.values[pool.output].shape[1:3]
    return (
        all(pool.attrs[name] == value for name, value in QUARTER.items())
        and pooled == (rows // 2, columns // 2)
        and channels % 4 == 0
    )


def _function(_: Network, __: Op, activation: Op) -> Mapping[str, Any]:
    """The activation function, and its coefficient if it has one."""
    return {**activation.attrs, "function": activation.kind}


def _inner_map(network: Network, conv: Op, _: Op) -> Mapping[str, Any]:
    """The sides of the map that is pooled, which no value of the network holds any more."""
    return {"sides": network.values[conv.output].shape[1:3]}


def _may_code(network: Network, pool: Op) -> bool:
    """Whether codes of two or four bits, whole bytes a pixel, name the maxima of the windows."""
    taps = pool.attrs["kernel"][0] * pool.attrs["kernel"][1]
    channels = network.values[pool.output].shape[-1]
    return taps <= CODED_TAPS and channels % channels_per_code_byte(taps) == 0


def channels_per_code_byte(taps: int) -> int:
    """Channels whose maxima, each of a window of `taps`, one byte of codes names."""
    return 4 if taps <= 4 else 2
