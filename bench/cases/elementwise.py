"""Kernels that move bytes, on tensors of over 100 MB, beside torch's own."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from bench.cases.case import Calls, Case
from bench.timing import DTYPES
from tvdnn.kernels import activation, dropout, layout, loss, norm, optim, pool_avg, pool_max, reduce

FC6: Final = (4096, 25088)  # the largest weight of VGG-16
EXACT_SAMPLES: Final = 2
LRN: Final = {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}
Shape = tuple[int, ...]
Make = Callable[[], Calls]


def cases(dtype: str) -> Iterator[Case]:
    """All of them; maps in `dtype`."""
    kind = DTYPES[dtype]
    for kernel, shape, nbytes, make in (*_maps(kind), *_rows(kind), *_parameters()):
        text = "x".join(str(size) for size in shape)
        yield Case(kernel, text, dtype, 0.0, float(nbytes), lambda _, make=make: make(), shape[0])


Listed = Iterator[tuple[str, Shape, int, Make]]


def _maps(kind: torch.dtype) -> Listed:
    """Over feature maps [N, H, W, C]."""
    first, alexnet, last = (256, 224, 224, 64), (1024, 55, 55, 64), (1024, 14, 14, 512)
    size = kind.itemsize
    two, three = windows(2), windows(3)
    yield "relu", first, 2 * size * prod(first), lambda: relu(first, kind)
    yield "relu_grad", first, 3 * size * prod(first), lambda: relu_grad(first, kind)
    for shape, window in ((first, two), (alexnet, three)):
        pooled = _pooled(shape, window)
        moved = size * (prod(shape) + prod(pooled))
        name = f" {window['kernel'][0]}x{window['kernel'][1]}"
        yield "max_pool2d" + name, shape, moved, lambda s=shape, w=window: pooling(s, kind, w)
        yield (
            "max_pool2d_grad" + name,
            shape,
            moved + size * prod(shape),
            lambda s=shape, w=window: pooling_grad(s, kind, w),
        )
    yield "adaptive_avg_pool2d", last, size * prod(last) * 5 // 4, lambda: adaptive(last, kind)
    yield "local_response_norm", alexnet, 2 * size * prod(alexnet), lambda: lrn(alexnet, kind)
    moved = 3 * size * prod(alexnet)
    yield "local_response_norm_grad", alexnet, moved, lambda: lrn_grad(alexnet, kind)
    yield "add", first, 3 * size * prod(first), lambda: sum_of_two(first, kind)
    image = (256, 3, 224, 224)
    yield "stage", image, (4 + size) * prod(image), lambda: stage(image, kind)
    yield "sum_rows (bias gradient)", first, size * prod(first), lambda: bias_grad(first, kind)


def _rows(kind: torch.dtype) -> Listed:
    """Over matrices [N, F]."""
    size = kind.itemsize
    wide = (32768, 4096)
    yield "dropout", wide, 2 * size * prod(wide), lambda: dropped(wide, kind)
    for shape in ((65536, 1000), (2048, 50257)):
        moved = 3 * size * prod(shape)
        yield "cross_entropy and gradient", shape, moved, lambda s=shape: cross_entropy(s, kind)


def _parameters() -> Listed:
    """Over float32 parameters."""
    yield "sgd", FC6, 5 * 4 * prod(FC6), lambda: sgd(FC6)
    yield "cast", FC6, 6 * prod(FC6), lambda: cast(FC6)
    partials = (11, 512, 3, 3, 512)
    yield "sum_partials", partials, 4 * prod(partials) * 12 // 11, lambda: sum_partials(partials)


# Maps


def relu(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = _randn(shape, kind), _poisoned(shape, kind)
    return _per_sample(lambda: activation.relu(x, y), y, torch.relu, x)


def relu_grad(shape: Shape, kind: torch.dtype) -> Calls:
    y, dy, dx = _randn(shape, kind).relu_(), _randn(shape, kind), _poisoned(shape, kind)

    def gradient(upper: Tensor, output: Tensor) -> Tensor:
        result: Tensor = torch.ops.aten.threshold_backward(upper, output, 0)
        return result

    return _per_sample(lambda: activation.relu_grad(y, dy, dx), dx, gradient, dy, y)


def windows(size: int) -> dict[str, tuple[int, int]]:
    return {"kernel": (size,) * 2, "stride": (2, 2), "padding": (0, 0), "dilation": (1, 1)}


def _pooled(shape: Shape, window: dict[str, tuple[int, int]]) -> Shape:
    out = (shape[1] - window["kernel"][0]) // 2 + 1
    return (shape[0], out, out, shape[3])


def pooling(shape: Shape, kind: torch.dtype, window: dict[str, Any]) -> Calls:
    x, y = _randn(shape, kind), _poisoned(_pooled(shape, window), kind)

    def pooled(maps: Tensor) -> Tensor:
        return functional.max_pool2d(maps, *window.values())

    return _per_sample(lambda: pool_max.max_pool2d(x, y, **window), _nchw(y), pooled, _nchw(x))


def pooling_grad(shape: Shape, kind: torch.dtype, window: dict[str, Any]) -> Calls:
    """torch's gradient has the indices that its forward pass left, 8 bytes an output."""
    x, dx = _randn(shape, kind), _poisoned(shape, kind)
    dy = _randn(_pooled(shape, window), kind)
    _, indices = functional.max_pool2d(_nchw(x), *window.values(), return_indices=True)

    def gradient(upper: Tensor, maps: Tensor, found: Tensor) -> Tensor:
        settings = (*window.values(), False, found.long())
        result: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(upper, maps, *settings)
        return result

    return _per_sample(
        lambda: pool_max.max_pool2d_grad(x, dy, dx, **window), _nchw(dx),
        gradient, _nchw(dy), _nchw(x), indices,
    )  # fmt: skip


def adaptive(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = _randn(shape, kind), _poisoned((shape[0], 7, 7, shape[3]), kind)

    def averages(maps: Tensor) -> Tensor:
        return functional.adaptive_avg_pool2d(maps, 7)

    return _per_sample(lambda: pool_avg.adaptive_avg_pool2d(x, y), _nchw(y), averages, _nchw(x))


def _normalized(maps: Tensor) -> Tensor:
    return functional.local_response_norm(maps, *LRN.values())


def lrn(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = _randn(shape, kind), _poisoned(shape, kind)
    own = lambda: norm.local_response_norm(x, y, **LRN)  # noqa: E731
    return _per_sample(own, _nchw(y), _normalized, _nchw(x))


def lrn_grad(shape: Shape, kind: torch.dtype) -> Calls:
    """torch's time has its forward pass too: only autograd knows the gradient."""
    x, dy, dx = _randn(shape, kind), _randn(shape, kind), _poisoned(shape, kind)

    def gradient(maps: Tensor, upper: Tensor) -> Tensor:
        leaf = maps.detach().requires_grad_()
        return torch.autograd.grad(_normalized(leaf), leaf, upper)[0]

    own = lambda: norm.local_response_norm_grad(x, dy, dx, **LRN)  # noqa: E731
    return _per_sample(own, _nchw(dx), gradient, _nchw(x), _nchw(dy))


def sum_of_two(shape: Shape, kind: torch.dtype) -> Calls:
    a, b, out = _randn(shape, kind), _randn(shape, kind), _poisoned(shape, kind)
    return _per_sample(lambda: layout.add(a, b, out), out, torch.add, a, b)


def stage(shape: Shape, kind: torch.dtype) -> Calls:
    """The caller's float32 images, into maps."""
    x = _randn(shape, torch.float32)
    y = _poisoned((shape[0], *shape[2:], shape[1]), kind)

    def peer() -> Tensor:
        return x.to(kind, memory_format=torch.channels_last)

    def own() -> Tensor:
        layout.stage(x, y)
        return _nchw(y)

    return Calls(own, peer, lambda: x[:EXACT_SAMPLES].double(), _few)


def bias_grad(shape: Shape, kind: torch.dtype) -> Calls:
    dy = _randn(shape, kind).view(-1, shape[-1])
    group = shape[1] * shape[2]
    partials = torch.full((shape[0], 16, shape[-1]), torch.nan)
    sums = torch.full((shape[-1],), torch.nan)

    def own() -> Tensor:
        reduce.sum_rows(dy, partials, group=group)
        reduce.sum_partials(partials, sums, first=True)
        return sums

    return Calls(own, lambda: dy.sum(0), lambda: dy.sum(0, dtype=torch.float64))


# Rows


def dropped(shape: Shape, kind: torch.dtype) -> Calls:
    x, y = _randn(shape, kind), _poisoned(shape, kind)
    wanted = torch.empty_like(x)
    seed = torch.ones(1, dtype=torch.int64)
    drawn = {"p": 0.5, "op_id": 1, "first_sample": 0}

    def own() -> Tensor:
        dropout.dropout(x, y, seed, **drawn)
        return y

    def exact() -> Tensor:
        few = slice(EXACT_SAMPLES)
        dropout.dropout_reference(x[few], wanted[few], seed, **drawn)
        return wanted[few].double()

    def peer() -> Tensor:
        return functional.dropout(x, 0.5)

    return Calls(own, peer, exact, _few, same_numbers=False)


def cross_entropy(shape: Shape, kind: torch.dtype) -> Calls:
    """The mean loss, and its gradient, which is compared."""
    logits, gradient = _randn(shape, kind), _poisoned(shape, kind)
    target = torch.randint(0, shape[1], shape[:1])
    losses, lse, total = (torch.empty(size) for size in (shape[0], shape[0], 2))
    one, options = torch.ones(1), {"reduction": "mean", "ignore_index": -100}
    leaf = logits.detach().requires_grad_()

    def own() -> Tensor:
        loss.cross_entropy_rows(logits, target, losses, lse, ignore_index=-100)
        loss.cross_entropy_total(losses, target, total, **options)
        loss.cross_entropy_grad(logits, target, lse, total, one, gradient, **options)
        return gradient

    def peer() -> Tensor:
        return torch.autograd.grad(functional.cross_entropy(leaf, target), leaf)[0]

    def exact() -> Tensor:
        wide = logits[:EXACT_SAMPLES].double()
        hot = functional.one_hot(target[:EXACT_SAMPLES], shape[1])
        return (wide.softmax(1) - hot) / shape[0]

    return Calls(own, peer, exact, _few)


# Parameters


def sgd(shape: Shape) -> Calls:
    start, grad = _randn(shape, torch.float32), _randn(shape, torch.float32)
    mine, theirs = start.clone(), start.clone()
    momenta = [torch.zeros_like(start) for _ in range(2)]
    control = torch.tensor([0.1, 0.9, 0.0, 1e-4, 0.0, 1.0, 0.0, 0.0])

    def own() -> Tensor:
        optim.sgd(mine, grad, momenta[0], control, nesterov=False, maximize=False)
        return mine

    def peer() -> Tensor:
        torch._fused_sgd_(
            [theirs], [grad], [momenta[1]], weight_decay=1e-4, momentum=0.9, lr=0.1,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
        return theirs

    def exact() -> Tensor:
        wide = start[:EXACT_SAMPLES].double()
        return wide - 0.1 * (grad[:EXACT_SAMPLES].double() + 1e-4 * wide)

    return Calls(own, peer, exact, _few)


def cast(shape: Shape) -> Calls:
    weight, narrow = _randn(shape, torch.float32), _poisoned(shape, torch.bfloat16)
    return _per_sample(
        lambda: layout.cast(weight, narrow), narrow,
        lambda values: values.bfloat16() if values.dtype == torch.float32 else values, weight,
    )  # fmt: skip


def sum_partials(shape: Shape) -> Calls:
    partials, grad = _randn(shape, torch.float32), _poisoned(shape[1:], torch.float32)
    grad = grad.permute(0, 3, 1, 2).contiguous()

    def own() -> Tensor:
        reduce.sum_partials(partials, grad, first=True)
        return grad

    def total(values: Tensor) -> Tensor:
        return values.sum(0).permute(0, 3, 1, 2)

    return Calls(own, lambda: total(partials), lambda: total(partials.double()))


# Operands


def _per_sample(
    launch: Callable[[], None], out: Tensor, peer: Callable[..., Tensor], *inputs: Tensor
) -> Calls:
    """A launch that leaves `out`, and torch's operation, in float64 on the first samples."""

    def own() -> Tensor:
        launch()
        return out

    def exact() -> Tensor:
        return peer(*(tensor[:EXACT_SAMPLES].double() for tensor in inputs))

    return Calls(own, lambda: peer(*inputs), exact, _few)


def _few(result: Tensor) -> Tensor:
    return result[:EXACT_SAMPLES]


def _randn(shape: Shape, kind: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=kind)


def _poisoned(shape: Shape, kind: torch.dtype) -> Tensor:
    return torch.full(shape, torch.nan, dtype=kind)


def _nchw(nhwc: Tensor) -> Tensor:
    return nhwc.permute(0, 3, 1, 2)
