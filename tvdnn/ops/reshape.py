"""Ops that move or rename bytes: view, flatten to torch's order, shuffle."""

from dataclasses import replace

from ..graph import Op
from .builder import Builder
from .concat_views import StridedSupport
from .operator import STRIDED, Launch, Operator, as_maps
from .passes import forward, grad_apart
from .reshape_translator import channel_shuffle, clone, copy_, movedim, permute, reshape, transpose
from .row_tiles import tiles_by_pixel, tiles_of_view


def view_forward(b: Builder, op: Op) -> None:
    b.put(op.output, b.add_view(b.input_of(op), b.shape(op.output)))
    b.passes_masks(op)


def view_backward(b: Builder, op: Op) -> None:
    b.hand_mask_on(op)
    (value,) = op.inputs
    b.adopt_grad(value, b.add_view(b.grad_of(op), b.shape(value)))


def moving_forward(b: Builder, op: Op) -> None:
    forward(b, op)
    b.passes_masks(op)


def moving_backward(b: Builder, op: Op) -> None:
    b.hand_mask_on(op)
    grad_apart(b, op)


def _run_flatten(a: Launch) -> None:
    x, y = as_maps(a.reads[0]), a.writes[0]
    n, h, w, c = x.shape
    a.kernels.unstage(x, y.view(n, c, h, w))


def _run_unflatten(a: Launch) -> None:
    dy, dx = a.reads[0], as_maps(a.writes[0])
    n, h, w, c = dx.shape
    a.kernels.stage(dy.view(n, c, h, w), dx)


def _run_shuffle(a: Launch) -> None:
    x, y = a.reads[0], a.writes[0]
    a.kernels.shuffle_channels(x.view(y.shape), y, **a.settings("groups"))


def _run_unshuffle(a: Launch) -> None:
    dy, dx = a.reads[0], a.writes[0]
    groups = dy.shape[3] // a.attrs["groups"]
    a.kernels.shuffle_channels(dy, dx.view(dy.shape), groups=groups)


_RESHAPES = (
    *("flatten", "unflatten", "squeeze", "unsqueeze", "view", "view_as", "reshape", "reshape_as"),
    *("contiguous", "detach", "positive", "operator.pos"),
)
VIEW = Operator(
    "view",
    view_forward,
    view_backward,
    {},
    strided=StridedSupport(frozenset({"gradient"})),
    row_tiles=tiles_of_view,
    functions={
        **dict.fromkeys(_RESHAPES, reshape),
        **dict.fromkeys(("movedim", "moveaxis"), movedim),
        **dict.fromkeys(("transpose", "swapaxes", "swapdims"), transpose),
        "permute": permute,
        "clone": clone,
        "copy_": copy_,
    },
    modules=("Identity", "Flatten", "Unflatten"),
    keeps_axes=True,
    skippable=True,
)
FLATTEN = Operator(
    "flatten",
    moving_forward,
    moving_backward,
    {"forward": _run_flatten, "grad_input": _run_unflatten},
    copies_values={"forward", "grad_input"},
    strided=STRIDED,
    takes_rows=True,
)
SHUFFLE_CHANNELS = replace(
    FLATTEN,
    kind="shuffle_channels",
    launches={"forward": _run_shuffle, "grad_input": _run_unshuffle},
    row_tiles=tiles_by_pixel,
    functions={"channel_shuffle": channel_shuffle},
    modules=("ChannelShuffle",),
    takes_rows=False,
)
