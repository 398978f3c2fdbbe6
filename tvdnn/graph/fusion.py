"""Fusion: rewrites that replace two ops by one op with one kernel.

A rewrite fuses an op with the only reader of its output. The value between them is then never
written. The fused op computes the same bits as the two.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from .network import Network, Op

# Most taps of a pooling window: a code of four bits names its maximum.
MOST_CODED_TAPS = 16
ACTIVATIONS = (
    *("leaky_relu", "sigmoid", "tanh", "relu6"),
    *("elu", "silu", "gelu", "gelu_tanh", "hardswish", "hardsigmoid"),
)
# The settings of a 2x2 pooling without overlap.
POOL_2X2: Mapping[str, Any] = {
    "kernel": (2, 2),
    "stride": (2, 2),
    "padding": (0, 0),
    "dilation": (1, 1),
}


@dataclass(frozen=True, slots=True)
class FusionRule:
    """Ops of kind `first` fuse with the only reader of their output, of kind `second`."""

    first: str
    second: str
    fused: str  # kind of the fused op
    applies: Callable[[Network, Op, Op], bool] = lambda *_: True
    attrs: Callable[[Network, Op, Op], Mapping[str, Any]] = lambda *_: {}  # added to the first's


def fuse(network: Network, masks_by_signs: bool = False) -> Network:
    """The network after every rewrite, each wherever it applies.

    With `masks_by_signs` fused normalizations take the masks of their ReLUs from the signs of their
    outputs. Backward else computes the masks again from the inputs of the normalizations. A mask of
    rounded inputs would be another one, because values near zero change sides.
    """
    for rewrite in REWRITES:
        network = rewrite(network)
    return _masked_by_signs(network) if masks_by_signs else network


def conv2d_relu(network: Network) -> Network:
    """Fuse a convolution with its ReLU."""
    return _fused(network, FusionRule("conv2d", "relu", "conv2d_relu"))


def conv2d_relu_max_pool2d(network: Network) -> Network:
    """Fuse a rectified convolution with its 2x2 max pooling, with codes of two bits a maximum."""
    kinds = "conv2d_relu", "max_pool2d", "conv2d_relu_max_pool2d"
    return _fused(network, FusionRule(*kinds, _pools_2x2, _pooled_sides))


def linear_relu(network: Network) -> Network:
    """Fuse a linear layer with its ReLU."""
    return _fused(network, FusionRule("linear", "relu", "linear_relu"))


def linear_relu_dropout(network: Network) -> Network:
    """Fuse a rectified linear layer with its dropout."""

    def attrs(_: Network, __: Op, dropout: Op) -> Mapping[str, Any]:
        return dropout.attrs

    rule = FusionRule("linear_relu", "dropout", "linear_relu_dropout", attrs=attrs)
    return _fused(network, rule)


def batch_norm_add(network: Network) -> Network:
    """Fuse a normalization with the addition of a residual to its output.

    A normalization that shares its running statistics is not fused, because these change
    in the order of the calls.
    """
    readers = _only_readers(network)
    uses = Counter(name for op in network.ops for name in op.params)
    makers = {
        op.output: op
        for op in network.ops
        if op.kind == "batch_norm" and all(uses[name] == 1 for name in op.params[2:] if name)
    }
    return _with_additions(
        network,
        lambda value: [makers[value]] if value in makers and value in readers else [],
        lambda ops: replace(ops[0], kind="batch_norm_add"),
    )


def batch_norm_relu(network: Network) -> Network:
    """Fuse a normalization with its ReLU."""
    return _fused(
        network, FusionRule("batch_norm", "relu", "batch_norm_relu", attrs=_activation_attrs)
    )


def batch_norm_activation(network: Network) -> Network:
    """Fuse a normalization with another activation.

    Backward computes the activation's input again from the normalization's input.
    """
    for name in ACTIVATIONS:
        rule = FusionRule("batch_norm", name, "batch_norm_activation", attrs=_activation_attrs)
        network = _fused(network, rule)
    return network


def batch_norm_add_relu(network: Network) -> Network:
    """Fuse a normalization and its residual with their ReLU."""
    rule = FusionRule("batch_norm_add", "relu", "batch_norm_add_relu", attrs=_activation_attrs)
    return _fused(network, rule)


def scaled_residual(network: Network) -> Network:
    """Fuse the addition of a residual with what scales the other term, or drops parts of it."""
    readers, makers = _only_readers(network), {op.output: op for op in network.ops}

    def made_by(value: str, kind: str) -> list[Op]:
        maker = makers.get(value)
        return [maker] if maker is not None and maker.kind == kind and value in readers else []

    def branch(value: str) -> list[Op]:
        drop = made_by(value, "dropout_parts")
        return drop + made_by(drop[0].inputs[0] if drop else value, "scale_channels")

    def as_one(ops: Sequence[Op]) -> Op:
        first, last = ops[-1], ops[0]
        return replace(first, kind=f"{first.kind}_add", attrs={**first.attrs, **last.attrs})

    return _with_additions(network, branch, as_one)


def gated_residual(network: Network) -> Network:
    """Fuse the addition of a residual, and its ReLU, with what gates the other term."""
    readers = _only_readers(network)
    makers = {op.output: op for op in network.ops if op.kind == "gate_multiply"}
    network = _with_additions(
        network,
        lambda value: [makers[value]] if value in makers and value in readers else [],
        lambda ops: replace(ops[0], kind="gate_multiply_add"),
    )
    return _fused(network, FusionRule("gate_multiply_add", "relu", "gate_multiply_add_relu"))


def max_pool2d_codes(network: Network) -> Network:
    """Let max poolings write codes of their maxima. Backward then does not read their inputs."""
    return _with_codes(network, {op.name for op in network.ops})


def relu_max_pool2d_codes(network: Network) -> Network:
    """Let max poolings write codes that are the only readers of a ReLU or of joined ReLUs.

    Backward then needs no more of the ReLUs' outputs than their signs.
    """
    readers = _only_readers(network)
    relus = {op.output for op in network.ops if op.kind == "relu" and op.output in readers}
    for op in network.ops:
        if op.kind == "concat" and op.output in readers and relus.issuperset(op.inputs):
            relus.add(op.output)
    return _with_codes(network, {readers[value].name for value in relus})


REWRITES: tuple[Callable[[Network], Network], ...] = (
    conv2d_relu,
    conv2d_relu_max_pool2d,
    linear_relu,
    linear_relu_dropout,
    batch_norm_add,
    batch_norm_relu,
    batch_norm_activation,
    batch_norm_add_relu,
    scaled_residual,
    gated_residual,
    max_pool2d_codes,
)


def _masked_by_signs(network: Network) -> Network:
    def by_signs(op: Op) -> Op:
        masks = op.kind == "batch_norm_relu"
        return replace(op, kind="batch_norm_relu_by_signs") if masks else op

    return replace(network, ops=tuple(map(by_signs, network.ops)))


def _with_codes(network: Network, names: Set[str]) -> Network:
    """The network whose max poolings among the ops of these names write codes."""

    def coded(op: Op) -> Op:
        takes = op.kind == "max_pool2d" and op.name in names and _codes_fill_bytes(network, op)
        return replace(op, kind="max_pool2d_codes") if takes else op

    return replace(network, ops=tuple(coded(op) for op in network.ops))


def _fused(network: Network, rule: FusionRule) -> Network:
    """The network with `rule` applied wherever it applies."""
    readers = _only_readers(network)
    fused: dict[str, Op] = {}
    absorbed: set[str] = set()
    for op in network.ops:
        reader = readers.get(op.output)
        if op.kind != rule.first or reader is None or reader.kind != rule.second:
            continue
        if rule.applies(network, op, reader):
            attrs = {**op.attrs, **rule.attrs(network, op, reader)}
            fused[op.name] = replace(op, kind=rule.fused, output=reader.output, attrs=attrs)
            absorbed.add(reader.name)
    inner = {op.output for op in network.ops if op.name in fused}
    return _replaced(network, fused, absorbed, inner)


def _with_additions(
    network: Network,
    branch: Callable[[str], Sequence[Op]],
    as_one: Callable[[Sequence[Op]], Op],
) -> Network:
    """The network whose additions are fused with ops that make one of their terms.

    `branch` gives the ops that make a value, the last first; none where none may be fused. Of two
    terms with such ops the later one is fused. `as_one` makes one op of them. That takes the place
    of the addition, and the other term as its last input.
    """
    places = {op.name: place for place, op in enumerate(network.ops)}
    fused: dict[str, Op] = {}
    absorbed: set[str] = set()
    for op in network.ops:
        branches = [ops for name in op.inputs if op.kind == "add" if (ops := branch(name))]
        if not branches:
            continue
        chosen = max(branches, key=lambda ops: places[ops[0].name])
        (residual,) = (name for name in op.inputs if name != chosen[0].output)
        one = as_one(chosen)
        fused[op.name] = replace(one, inputs=(*one.inputs, residual), output=op.output)
        absorbed |= {each.name for each in chosen}
    inner = {op.output for op in network.ops if op.name in absorbed}
    return _replaced(network, fused, absorbed, inner)


def _replaced(
    network: Network, fused: Mapping[str, Op], absorbed: set[str], inner: set[str]
) -> Network:
    """The network with `fused` ops by name, without the `absorbed` ops and the `inner` values."""
    return replace(
        network,
        values={name: value for name, value in network.values.items() if name not in inner},
        ops=tuple(fused.get(op.name, op) for op in network.ops if op.name not in absorbed),
    )


def _only_readers(network: Network) -> dict[str, Op]:
    """By value with one reader, that reader.

    Outputs of the network are left out. So are values that stop the gradient: an op fused over such
    a value would let the gradient through.
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


def _pools_2x2(network: Network, conv: Op, pool: Op) -> bool:
    """True if the pooling has 2x2 windows without overlap, and channels in groups of four."""
    _, rows, columns, channels = network.values[conv.output].shape
    pooled = network.values[pool.output].shape[1:3]
    return (
        all(pool.attrs[name] == value for name, value in POOL_2X2.items())
        and pooled == (rows // 2, columns // 2)
        and channels % 4 == 0
    )


def _activation_attrs(_: Network, __: Op, activation: Op) -> Mapping[str, Any]:
    return {**activation.attrs, "function": activation.kind}


def _pooled_sides(network: Network, conv: Op, _: Op) -> Mapping[str, Any]:
    return {"sides": network.values[conv.output].shape[1:3]}


def _codes_fill_bytes(network: Network, pool: Op) -> bool:
    taps = pool.attrs["kernel"][0] * pool.attrs["kernel"][1]
    channels = network.values[pool.output].shape[-1]
    return taps <= MOST_CODED_TAPS and channels % channels_per_code_byte(taps) == 0


def channels_per_code_byte(taps: int) -> int:
    """The number of channels whose maxima one byte of codes names, in windows of `taps`."""

    return 4 if taps <= 4 else 2
