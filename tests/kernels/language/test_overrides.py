"""Configurations: each asker gets its own alone, and none changes a result."""

import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.kernels.conv.conv_layers import Layer, Shape, make, tolerance_of
from tests.kernels.numerics import poisoned, poisoned_like, randn, rms_error
from tvdnn.kernels.conv import conv2d as conv
from tvdnn.kernels.conv import launch as conv_launch
from tvdnn.kernels.conv.grad_weight.launch import conv2d_grad_weight, grad_weight_plan
from tvdnn.kernels.conv.tiles import Tile
from tvdnn.kernels.language.overrides import Configurations, TileRequest, configured
from tvdnn.kernels.linear import passes as linear
from tvdnn.kernels.linear.gemm import share_of
from tvdnn.kernels.tuning.candidates import candidates
from tvdnn.runtime.kernel_set import kernel_set

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
TILE = Tile(128, 128, 64, 4, 3)
LAYERS = {
    "box": (Shape((2, 8, 8), (64, 128)), BFLOAT16),
    "box, tf32": (Shape((2, 5, 7), (32, 72), precision="tf32"), FLOAT32),
    "one by one": (Shape((3, 5, 5), (64, 32), (1, 1), padding=(0, 0)), BFLOAT16),
    "stride 2": (Shape((2, 8, 6), (64, 64), stride=(2, 2)), BFLOAT16),
    "few channels": (Shape((2, 5, 7), (3, 72)), BFLOAT16),
    "groups": (Shape((2, 6, 6), (64, 128), groups=2), BFLOAT16),
    "exact": (Shape((2, 6, 5), (24, 40)), FLOAT32),
}
PRODUCTS = [(BFLOAT16, "ieee"), (FLOAT32, "tf32"), (FLOAT32, "ieee")]
TOLERANCE = {(BFLOAT16, "ieee"): 4e-3, (FLOAT32, "tf32"): 2e-3, (FLOAT32, "ieee"): 2e-6}
Table = Mapping[str, Mapping[str, int]]
Run = Callable[[Table], tuple[Configurations, list[Tensor]]]


def few(asked: Mapping[str, TileRequest]) -> Iterator[Table]:
    """Tables of a launch's first and last candidates."""
    for key, each in asked.items():
        found = candidates(each)
        assert found, key
        assert all(set(way) <= set(each.tile.__slots__) for way in found)
        yield from ({key: found[0]}, {key: found[-1]})


def assert_close_by_any(run: Run, expected: list[Tensor], tolerance: float) -> None:
    """The first and the last candidates of a launch give the expected results."""
    by_rule, _ = run({})
    for table in few(by_rule.requests):
        configurations, left = run(table)
        assert configurations.requests.keys() == by_rule.requests.keys()
        for out, like in zip(left, expected, strict=True):
            assert rms_error(out, like) <= tolerance, table


@pytest.mark.parametrize("name", LAYERS)
def test_convolutions(name: str, generator: torch.Generator) -> None:
    shape, dtype = LAYERS[name]
    layer = make(shape, dtype, generator)
    expected = [poisoned_like(layer.dy), poisoned_like(layer.x)]
    settings, mask = shape.settings, layer.x.relu()
    packed, flipped = layer.packed(dtype), layer.packed_grad(dtype)
    conv.conv2d_reference(layer.x, packed, layer.bias, expected[0], **settings)
    conv.conv2d_grad_input_reference(layer.dy, flipped, expected[1], mask=mask, **settings)

    def run(table: Table) -> tuple[Configurations, list[Tensor]]:
        configurations = Configurations(table)
        kernels = kernel_set("triton", configurations)
        left = [poisoned_like(layer.dy), poisoned_like(layer.x)]
        kernels.conv2d(layer.x, packed, layer.bias, left[0], **settings)
        kernels.conv2d_grad_input(layer.dy, flipped, left[1], mask=mask, **settings)
        return configurations, left

    assert_close_by_any(run, expected, tolerance_of(shape, dtype))


@pytest.mark.parametrize("name", ["box", "few channels", "stride 2"])
def test_weight_gradients(name: str, generator: torch.Generator) -> None:
    shape, dtype = LAYERS[name]
    layer = make(shape, dtype, generator)
    settings = shape.settings
    shape_of = (layer.weight.shape[0], layer.weight.shape[1], *shape.size)
    sides = shape.x[1:], (layer.dy.shape[1], layer.dy.shape[2])
    plan = grad_weight_plan(*sides, shape_of, **settings, dtype=dtype)
    size = (plan.splits, shape_of[0], *shape.size, shape_of[1])

    def run(table: Table) -> tuple[Configurations, list[Tensor]]:
        configurations = Configurations(table)
        partials = poisoned(size, torch.float32, layer.x.device)
        launch = configurations.around(conv2d_grad_weight)
        launch(layer.x, layer.dy, partials, first=True, **settings)
        return configurations, [partials]

    assert_close_by_any(run, run({})[1], 1e-5)


@pytest.mark.parametrize(("dtype", "precision"), PRODUCTS, ids=str)
def test_products(dtype: torch.dtype, precision: str, generator: torch.Generator) -> None:
    x, dy = (randn((5, size), dtype, generator) for size in (264, 136))
    weight = randn((136, 264), dtype, generator, 264**-0.5)
    shares = -(-264 // share_of(264, 2))

    def outputs() -> tuple[Tensor, ...]:
        grad = poisoned((136, 264), torch.float32, x.device)
        return poisoned_like(dy), poisoned_like(dy), poisoned_like(x), grad

    def launch(kernels: Any, y: Tensor, shared: Tensor, dx: Tensor, grad: Tensor) -> None:
        partials = poisoned((5, shares, 136), torch.float32, x.device)
        kernels.linear(x, weight, None, y, precision=precision)
        kernels.linear(x, weight, None, shared, precision=precision, partials=partials)
        kernels.linear_grad_input(dy, weight, dx, precision=precision)
        kernels.linear_grad_weight(x[:4], dy[:4], grad, group=2, precision="ieee")

    expected = outputs()[:3]
    linear.linear_reference(x, weight, None, expected[0], precision=precision)
    linear.linear_reference(x, weight, None, expected[1], precision=precision)
    linear.linear_grad_input_reference(dy, weight, expected[2], precision=precision)

    def run(table: Table) -> tuple[Configurations, list[Tensor]]:
        configurations = Configurations(table)
        left = outputs()
        groups = poisoned((2, 136, 264), torch.float32, x.device)
        launch(kernel_set("triton", configurations), *left[:3], groups)
        return configurations, list(left[:3])

    assert_close_by_any(run, list(expected), TOLERANCE[dtype, precision])


class Spy:
    """Stands for a kernel, and keeps the arguments of its launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, dict[str, Any]]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *_, **constants: self.launches.append((grid, constants))


def test_nothing_changes_without_a_configuration(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = make(LAYERS["box"][0], BFLOAT16, generator)
    spy, packed = Spy(), layer.packed(BFLOAT16)
    monkeypatch.setattr(conv_launch, "conv_box_kernel", spy)
    monkeypatch.setattr(conv_launch, "suits_specialized", lambda *_, **__: False)  # on Hopper
    own, other = Configurations({}), Configurations({"of another layer": {"num_stages": 2}})
    sets = [kernel_set("triton", each) for each in (None, own, other)]
    for kernels in sets:
        kernels.conv2d(layer.x, packed, None, layer.dy, **layer.shape.settings)
    assert spy.launches[0] == spy.launches[1] == spy.launches[2]
    (key,) = own.requests
    table = Configurations({key: {"num_stages": 2, "flatten": False}})
    kernels = kernel_set("triton", table)
    kernels.conv2d(layer.x, packed, None, layer.dy, **layer.shape.settings)
    grid, constants = spy.launches[-1]
    changed = spy.launches[0][1] | {"STAGES": 2, "FLATTEN": False}
    assert (grid, constants) == (spy.launches[0][0], changed)
    assert kernel_set("triton").conv2d is conv.conv2d
    assert kernel_set("torch", table).conv2d is conv.conv2d_reference


def test_the_number_of_samples_is_no_part_of_a_key(generator: torch.Generator) -> None:
    def asked_by(samples: int) -> set[str]:
        found = Configurations({})
        layers: list[Layer] = []
        for shape, dtype in LAYERS.values():
            sized = Shape(
                **{n: getattr(shape, n) for n in shape.__slots__} | {"x": (samples, *shape.x[1:])}
            )
            layers.append(make(sized, dtype, generator))
        for layer in layers:
            packed = layer.packed(layer.x.dtype)
            launch = found.around(conv.conv2d)
            launch(layer.x, packed, None, layer.dy, **layer.shape.settings)
        x, y = (randn((samples, size), BFLOAT16, generator) for size in (24, 40))
        weight = randn((40, 24), BFLOAT16, generator)
        found.around(linear.linear)(x, weight, None, y, precision="ieee")
        grad = poisoned((1, 40, 24), torch.float32, x.device)
        way = {"group": samples, "precision": "ieee"}
        found.around(linear.linear_grad_weight)(x.float(), y.float(), grad, **way)
        return set(found.requests)

    assert asked_by(2) == asked_by(5)


def test_configurations_are_a_launchers_own_in_each_thread() -> None:
    """One that runs beside it, or within it, has its own or none."""
    seen: dict[str, int] = {}

    def ask(name: str) -> None:
        seen[name] = configured("box", TILE, lambda: {"layer": 1}).num_stages

    inner = Configurations({"box layer=1": {"num_stages": 5}}).around(ask)

    def outer() -> None:
        beside = threading.Thread(target=ask, args=("beside",))
        beside.start()
        beside.join()
        inner("inner")
        ask("outer")

    Configurations({"box layer=1": {"num_stages": 4}}).around(outer)()
    ask("none")
    assert seen == {"beside": 3, "inner": 5, "outer": 4, "none": 3}


def test_a_launch_that_fails_leaves_no_configuration_behind() -> None:
    def fail() -> None:
        raise ValueError("no launch")

    table = Configurations({"box layer=1": {"num_stages": 4}})
    with pytest.raises(ValueError, match="no launch"):
        table.around(fail)()
    assert configured("box", TILE, dict) is TILE


@pytest.mark.parametrize(
    ("kernel", "tile", "facts"),
    [
        ("specialized", TILE, {"rows": True, "box": (1, 8, 16)}),
        ("specialized", TILE, {"rows": False, "box": (1, 8, 16)}),
        ("box", TILE, {}),
        ("im2col", Tile(128, 64, 32, 4, 1), {}),
        ("pointer", TILE, {}),
        ("grad_weight", TILE, {"kernel": "per_sample"}),
        ("grad_weight", Tile(32, 128, 64, 4, 6), {"kernel": "transposed", "dtype": torch.float32}),
    ],
)
def test_candidates_keep_what_is_planned(kernel: str, tile: Tile, facts: dict[str, Any]) -> None:
    common = {"size": (3, 3), "dtype": torch.bfloat16, "out_channels": 256, "precision": "tf32"}
    asked = TileRequest(kernel, tile, common | {"pooled": False} | facts)
    found = candidates(asked)
    assert found
    assert [len(way) for way in found] == sorted(len(way) for way in found)
    kept = {"pixels", "parts"} | (set() if kernel == "im2col" else {"in_channels"})
    for way in found:
        assert not kept & way.keys()
        assert SimpleNamespace(**way) != SimpleNamespace(**{n: getattr(tile, n) for n in way})
    if kernel == "grad_weight":
        assert all("out_channels" not in way for way in found)
