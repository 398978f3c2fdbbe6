"""The run of torch in TF32 that errors are compared with."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.generated.tf32 import products_in
from tvdnn.kernels.language.rounding import stored_reference


def rounded(x: Tensor) -> Tensor:
    return stored_reference(x.detach().contiguous(), torch.float32, "tf32")


def test_products_have_rounded_operands_forward_and_backward() -> None:
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 5, 5, requires_grad=True)
    dy = torch.randn(2, 4, 5, 5)
    with products_in("tf32"):
        y = conv(x)
    y.backward(dy)
    own, weight = rounded(x).requires_grad_(), rounded(conv.weight).requires_grad_()
    product = functional.conv2d(own, weight, padding=1)
    product.backward(rounded(dy))
    assert conv.bias is not None
    assert conv.bias.grad is not None
    torch.testing.assert_close(y, product + conv.bias[:, None, None])
    torch.testing.assert_close(x.grad, own.grad)
    torch.testing.assert_close(conv.weight.grad, weight.grad)
    torch.testing.assert_close(conv.bias.grad, dy.sum((0, 2, 3)))
    assert not torch.equal(x.grad, torch.autograd.grad(conv(x), x, dy)[0])


def test_linear_layers_and_keyword_calls_are_products_too() -> None:
    x, weight = torch.rand(4, 6), torch.rand(3, 6)
    with products_in("tf32"):
        y = functional.linear(input=x, weight=weight)
    torch.testing.assert_close(y, rounded(x) @ rounded(weight).T)


def test_depthwise_convolutions_and_other_types_stay_exact() -> None:
    conv, x = nn.Conv2d(4, 4, 3, groups=4), torch.rand(1, 4, 5, 5)
    exact = conv(x), conv.double()(x.double())
    with products_in("tf32"):
        assert torch.equal(conv.float()(x), exact[0])
        assert torch.equal(conv.double()(x.double()), exact[1])
