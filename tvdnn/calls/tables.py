"""The tables of torch's functions and methods: what translates each, and what they cover."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from .activation import (
    elu,
    gelu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    relu,
    relu6,
    sigmoid,
    silu,
    tanh,
)
from .arithmetic import add, div, mul, neg, sub
from .batch_norm import batch_norm, counted_batch_norm
from .call import Call
from .concat import cat, getitem, narrow, select, split, stack, unbind
from .conv import conv2d
from .conv_transpose import conv_transpose2d
from .dropout import dropout, dropout2d, stochastic_depth, torch_stochastic_depth
from .group_norm import group_norm, instance_norm
from .layer_norm import layer_norm
from .layout import (
    channel_shuffle,
    movedim,
    permute,
    pixel_shuffle,
    pixel_unshuffle,
    reshape,
    transpose,
)
from .linear import linear
from .norm import local_response_norm
from .pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d, mean
from .remap import flip, pad, repeat, roll
from .resize import interpolate
from .softmax import log_softmax, softmax

FUNCTIONS: Mapping[Any, Callable[..., Call | None]] = {
    functional.conv2d: conv2d,
    functional.conv_transpose2d: conv_transpose2d,
    functional.linear: linear,
    functional.relu: relu,
    functional.relu_: relu,
    torch.relu: relu,
    torch.relu_: relu,
    functional.leaky_relu: leaky_relu,
    functional.leaky_relu_: leaky_relu,
    functional.elu: elu,
    functional.elu_: elu,
    functional.gelu: gelu,
    functional.silu: silu,
    torch.sigmoid: sigmoid,
    torch.sigmoid_: sigmoid,
    torch.tanh: tanh,
    torch.tanh_: tanh,
    functional.hardswish: hardswish,
    functional.hardsigmoid: hardsigmoid,
    functional.relu6: relu6,
    functional.hardtanh: hardtanh,
    functional.hardtanh_: hardtanh,
    operator.add: add,
    operator.iadd: add,
    torch.add: add,
    operator.sub: sub,
    operator.isub: sub,
    torch.sub: sub,
    operator.mul: mul,
    operator.imul: mul,
    torch.mul: mul,
    operator.truediv: div,
    operator.itruediv: div,
    torch.div: div,
    operator.neg: neg,
    torch.neg: neg,
    torch.cat: cat,
    torch.concat: cat,
    torch.concatenate: cat,
    torch.split: split,
    torch.chunk: split,
    torch.tensor_split: split,
    torch.unbind: unbind,
    torch.stack: stack,
    torch.narrow: narrow,
    torch.select: select,
    functional.pad: pad,
    torch.flip: flip,
    torch.roll: roll,
    torch.tile: repeat,
    torch.broadcast_to: repeat,
    functional.pixel_shuffle: pixel_shuffle,
    functional.pixel_unshuffle: pixel_unshuffle,
    torch.movedim: movedim,
    torch.moveaxis: movedim,
    torch.swapaxes: transpose,
    torch.swapdims: transpose,
    torch.unflatten: reshape,
    operator.getitem: getitem,
    functional.max_pool2d: max_pool2d,
    torch.max_pool2d: max_pool2d,
    functional.avg_pool2d: avg_pool2d,
    functional.adaptive_avg_pool2d: adaptive_avg_pool2d,
    functional.dropout: dropout,
    functional.dropout2d: dropout2d,
    functional.interpolate: interpolate,
    torch_stochastic_depth: stochastic_depth,
    functional.local_response_norm: local_response_norm,
    functional.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    functional.batch_norm: batch_norm,
    counted_batch_norm: batch_norm,
    functional.group_norm: group_norm,
    torch.group_norm: group_norm,
    functional.instance_norm: instance_norm,
    torch.mean: mean,
    functional.softmax: softmax,
    torch.softmax: softmax,
    functional.log_softmax: log_softmax,
    torch.log_softmax: log_softmax,
    torch.squeeze: reshape,
    torch.unsqueeze: reshape,
    torch.flatten: reshape,
    torch.reshape: reshape,
    torch.permute: permute,
    torch.transpose: transpose,
    torch.channel_shuffle: channel_shuffle,
}

METHODS: Mapping[str, Callable[..., Call | None]] = {
    "relu": relu,
    "relu_": relu,
    "sigmoid": sigmoid,
    "sigmoid_": sigmoid,
    "tanh": tanh,
    "tanh_": tanh,
    "add": add,
    "add_": add,
    "sub": sub,
    "sub_": sub,
    "mul": mul,
    "mul_": mul,
    "div": div,
    "div_": div,
    "neg": neg,
    "neg_": neg,
    "split": split,
    "chunk": split,
    "tensor_split": split,
    "unbind": unbind,
    "narrow": narrow,
    "select": select,
    "flip": flip,
    "roll": roll,
    "repeat": repeat,
    "tile": repeat,
    "expand": repeat,
    "expand_as": repeat,
    "broadcast_to": repeat,
    "movedim": movedim,
    "moveaxis": movedim,
    "swapaxes": transpose,
    "swapdims": transpose,
    "unflatten": reshape,
    "view_as": reshape,
    "reshape_as": reshape,
    "mean": mean,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "squeeze": reshape,
    "unsqueeze": reshape,
    "flatten": reshape,
    "view": reshape,
    "reshape": reshape,
    "contiguous": reshape,
    "permute": permute,
    "transpose": transpose,
}

SUPPORTED = (
    "Conv2d, ConvTranspose2d, Linear, ReLU, LeakyReLU, ReLU6, ELU, SiLU, GELU, Sigmoid, Tanh,"
    " Hardswish, Hardsigmoid, MaxPool2d, AvgPool2d, AdaptiveAvgPool2d, BatchNorm1d, BatchNorm2d,"
    " Dropout, Dropout2d, StochasticDepth, Upsample, ChannelShuffle, LocalResponseNorm, LayerNorm,"
    " GroupNorm, InstanceNorm1d, InstanceNorm2d, Flatten, Identity and Sequential, their functional"
    " forms, view, reshape, contiguous, permute and transpose, Softmax and LogSoftmax, mean of"
    " pixels, squeeze and unsqueeze, sums and products of maps, numbers, parameters of channels and"
    " [N, C, 1, 1], cat, stack, split, chunk, unbind, narrow, slices, pads, roll, flip, repeat and"
    " expand along any dimension but the batch, PixelShuffle and PixelUnshuffle"
)
