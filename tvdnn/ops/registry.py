"""The op definitions by kind, and the role that a pass of an op plays."""

from collections.abc import Callable

from .activation import ACTIVATIONS, RELU
from .arithmetic import ADD_MULTIPLE, AFFINE, MULTIPLY, STRAIGHT_THROUGH
from .batch_norm import (
    BATCH_NORM,
    BATCH_NORM_ACTIVATION,
    BATCH_NORM_ADD,
    BATCH_NORM_ADD_RELU,
    BATCH_NORM_RELU,
)
from .broadcast import BROADCASTS
from .channel_broadcast import CHANNEL_ADD, GATE_ADD, GATE_MULTIPLY
from .channel_scale import SCALE_CHANNELS
from .concat import CONCAT, NARROW, run_copies, run_zeros
from .conv import CONV2D, CONV2D_RELU, CONV2D_RELU_MAX_POOL2D
from .conv_depthwise import CONV2D_DEPTHWISE
from .conv_transpose import CONV_TRANSPOSE2D
from .dropout import DROPOUT, DROPOUT_PARTS
from .eager import OPAQUE
from .group_norm import GROUP_NORM
from .layer_norm import LAYER_NORM
from .linear import LINEAR, LINEAR_RELU, LINEAR_RELU_DROPOUT
from .local_response_norm import LOCAL_RESPONSE_NORM
from .loss import CROSS_ENTROPY, ELEMENT_LOSSES
from .operator import Launch, OpDef
from .optimizer import PARAMETER
from .pool import ADAPTIVE_AVG_POOL2D, AVG_POOL2D, MAX_POOL2D, MAX_POOL2D_CODES
from .prelu import PRELU
from .rearrange import JOIN, REARRANGE
from .reduce_axes import EXPAND, REDUCE_AXES
from .remap import REMAP
from .reshape import ADD, FLATTEN, SHUFFLE_CHANNELS, VIEW, run_add
from .resize import RESIZE
from .softmax import SOFTMAXES
from .unary import UNARY

_TRACED = (
    CONV2D,
    CONV2D_DEPTHWISE,
    CONV_TRANSPOSE2D,
    RELU,
    *ACTIVATIONS,
    *UNARY,
    PRELU,
    MAX_POOL2D,
    AVG_POOL2D,
    ADAPTIVE_AVG_POOL2D,
    LINEAR,
    DROPOUT,
    DROPOUT_PARTS,
    LOCAL_RESPONSE_NORM,
    LAYER_NORM,
    BATCH_NORM,
    GROUP_NORM,
    SCALE_CHANNELS,
    FLATTEN,
    SHUFFLE_CHANNELS,
    VIEW,
    ADD,
    ADD_MULTIPLE,
    AFFINE,
    MULTIPLY,
    STRAIGHT_THROUGH,
    *BROADCASTS,
    GATE_ADD,
    GATE_MULTIPLY,
    CHANNEL_ADD,
    *SOFTMAXES,
    RESIZE,
    REMAP,
    REARRANGE,
    JOIN,
    REDUCE_AXES,
    EXPAND,
    CONCAT,
    NARROW,
)
_FUSED = (
    CONV2D_RELU,
    CONV2D_RELU_MAX_POOL2D,
    LINEAR_RELU,
    LINEAR_RELU_DROPOUT,
    MAX_POOL2D_CODES,
    BATCH_NORM_RELU,
    BATCH_NORM_ACTIVATION,
    BATCH_NORM_ADD,
    BATCH_NORM_ADD_RELU,
)
_ADDED = (CROSS_ENTROPY, *ELEMENT_LOSSES, PARAMETER, OPAQUE)
_EVERY_OPS_MOVES = frozenset({"copy_grad"})
_EVERY_OPS = {"add_grad": run_add, "copy_grad": run_copies, "zero_grad": run_zeros}
DEFINITIONS: dict[str, OpDef] = {
    definition.kind: definition for definition in (*_TRACED, *_FUSED, *_ADDED)
}


def role(kind: str, name: str) -> Callable[[Launch], None]:
    """What a launch of the pass `name` of an op of `kind` does."""
    return {**_EVERY_OPS, **DEFINITIONS[kind].roles}[name]


def multiplies(kind: str, name: str) -> bool:
    """Whether the pass `name` of an op of `kind` multiplies what it reads on tensor cores."""
    return name in DEFINITIONS[kind].products


def moves(kind: str, name: str) -> bool:
    """Whether the pass writes no other values than it reads: each write those of one read."""
    return name in DEFINITIONS[kind].moves | _EVERY_OPS_MOVES
