"""Weight gradients of linear layers that update the weight as they are found."""

from typing import Any, Final

from torch import Tensor

from bench.cases.case import At, KernelCase
from bench.cases.launch import Launch, launching
from bench.cases.linear.passes import (
    FC6,
    FC8,
    HALF,
    KINDS_OF_PRODUCTS,
    ONES,
    TF32,
    LinearLayer,
    of_layer,
)
from bench.cases.operands import Operands
from bench.cases.optim.update import adamw_values, sgd_values, updated
from tvdnn.kernels.linear.fused_update import linear_grad_weight_adamw, linear_grad_weight_sgd


def _inputs(layer: LinearLayer) -> list[Tensor]:
    return [layer.rounded(layer.maps(each)) for each in (layer.inputs, layer.outputs)]


def _settings(layer: LinearLayer, transposed: bool) -> dict[str, Any]:
    room = layer.transposed() if transposed else None
    return {"precision": layer.precision, "transposed": room, "maximize": False}


@of_layer
def _sgd(o: Operands, layer: LinearLayer, transposed: bool = True) -> Launch:
    param, momentum = updated(o, 2, (layer.outputs, layer.inputs))
    operands = (*_inputs(layer), param, momentum, sgd_values(o))
    settings = _settings(layer, transposed)
    return launching(linear_grad_weight_sgd, *operands, nesterov=True, **settings)


@of_layer
def _adamw(o: Operands, layer: LinearLayer, transposed: bool = True) -> Launch:
    operands = (*_inputs(layer), *updated(o, 3, (layer.outputs, layer.inputs)))
    settings = _settings(layer, transposed)
    return launching(linear_grad_weight_adamw, *operands, adamw_values(o), **settings)


FUSED: Final = (At(FC6, HALF, wgmma=True), At(FC8, TF32))
SINGLE: Final = tuple(At(each.size, {**each.settings, "transposed": False}) for each in ONES)
CASES = (
    KernelCase(linear_grad_weight_sgd, _sgd, KINDS_OF_PRODUCTS, FUSED),
    KernelCase(linear_grad_weight_adamw, _adamw, KINDS_OF_PRODUCTS, (*FUSED, *SINGLE)),
)
