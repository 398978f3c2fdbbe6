"""Two steps of a case by a loop of torch's or by Trainer, and all that they leave."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

import tvdnn
from bench.generated.case import Case, Data
from bench.generated.returned import maps_in

STEPS = 2
SHARE = 0.1  # of the parameters' RMS: how much the first update changes them
Seen = dict[str, Tensor | None]
Form = tuple[str, torch.dtype]  # where a network computes, and in which type
EXACT: Final[Form] = ("cpu", torch.float64)


def learning_rate(case: Case, data: Data) -> float:
    """The rate at which a step changes parameters by a SHARE of them, by torch in float64."""
    net = torch_net(case, data, EXACT)
    if "trainer" in case.settings:
        _Loop(net, case, data, EXACT, lr=1.0).grads(0)
    else:
        loop(net, case, data, EXACT, lr=0.0, steps=1)
    params = [p for p in net.parameters() if p.grad is not None]
    weights = sum(float(p.detach().square().sum()) for p in params)
    grads = sum(float(p.grad.square().sum()) for p in params)  # type: ignore[union-attr]
    return SHARE * (weights / grads) ** 0.5 if grads else SHARE


def torch_net(case: Case, data: Data, form: Form) -> nn.Module:
    """The network as torch runs it in this type."""
    net = case.make_torch().to(*form)
    net.load_state_dict(data.state)
    return net


def loop(
    net: nn.Module, case: Case, data: Data, form: Form, *, lr: float, steps: int = STEPS
) -> Seen:
    """Steps of SGD with momentum, whose loss is a weighted sum of all outputs.

    What is seen: outputs, whether they require gradients, gradients of inputs and parameters,
    buffers, parameters after the last update; with the setting "evaluates" outputs in eval mode.
    """
    seen: Seen = {}
    device, dtype = form
    trained = [param for param in net.parameters() if param.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=lr, momentum=0.9) if trained else None
    for step in range(steps):
        inputs = [as_given(case, x.to(device, dtype, copy=True)) for x in data.inputs[step]]
        for name, x in zip(case.shapes, inputs, strict=True):
            x.requires_grad_(name in case.grads)
        net.zero_grad(set_to_none=True)
        outputs = _outputs(net(*inputs), seen, f"step {step + 1} ")
        losses = []
        for number, (name, out) in enumerate(outputs.items()):
            seen[f"step {step + 1} output {name}"] = _kept(out)
            if out.requires_grad:
                gradient = data.gradient(step, number, out.shape)
                losses.append((out * gradient.to(device, out.dtype)).sum())
            seen[f"step {step + 1} requires_grad {name}"] = torch.tensor(float(out.requires_grad))
        if losses:
            torch.stack([loss.double() for loss in losses]).sum().backward()
        for name, x in zip(case.shapes, inputs, strict=True):
            if name in case.grads:
                seen[f"step {step + 1} gradient of input {name}"] = _kept(x.grad)
        for name, param in net.named_parameters():
            seen[f"step {step + 1} gradient {name}"] = _kept(param.grad)
        seen |= _buffers(net, step)
        if optimizer is not None and losses:
            optimizer.step()
        _change(net, case, step)
    seen |= {f"parameter {name}": _kept(param) for name, param in net.named_parameters()}
    if case.settings.get("evaluates"):
        seen |= _evaluated(net, [x.to(device, dtype, copy=True) for x in data.inputs[-1]])
    return seen


def as_given(case: Case, x: Tensor) -> Tensor:
    """An input in the memory format that the case's settings ask for."""
    last = "channels_last" in case.settings and x.dim() == 4
    return x.contiguous(memory_format=torch.channels_last) if last else x


def loop_of_losses(net: nn.Module, case: Case, data: Data, form: Form, *, lr: float) -> Seen:
    """Losses and parameters of torch's own loop with Trainer's loss and optimizer."""
    training = _Loop(net, case, data, form, lr)
    seen: Seen = {}
    for step in range(STEPS):
        seen[f"step {step + 1} loss"] = training.step(step)
        seen |= _finish_step(net, case, step)
    return seen


def _finish_step(net: nn.Module, case: Case, step: int) -> Seen:
    """Record buffers and parameters after a step, then make the change that may follow it."""
    seen = dict(_buffers(net, step))
    named = net.named_parameters()
    seen |= {f"step {step + 1} parameter {name}": _kept(param) for name, param in named}
    _change(net, case, step)
    return seen


def trainer_steps(trainer: tvdnn.Trainer, case: Case, data: Data) -> Seen:
    """Losses and parameters of Trainer after the same steps."""
    seen: Seen = {}
    net, device = trainer.net, trainer.device
    accumulate = case.settings["trainer"].get("accumulate", 1)
    shape = output_shape(case, data)
    for step in range(STEPS):
        (x,) = data.inputs[step]
        y = data.target(loss_of(case, shape), step, shape)
        loss = trainer.step(x.to(device, copy=True), y.to(device), accumulate=accumulate)
        seen[f"step {step + 1} loss"] = _kept(loss)
        seen |= _finish_step(net, case, step)
    return seen


def loss_of(case: Case, shape: tuple[int, ...]) -> nn.Module:
    """The loss of a case for outputs of this shape."""
    names = {"nn": nn, "torch": torch, "CHANNELS": shape[1]}
    loss: nn.Module = eval(case.settings["trainer"]["loss"], names)
    return loss


def optimizer_of(case: Case, lr: float, package: Any) -> Callable[..., Any]:
    """The optimizer of a case: of torch.optim, called with parameters, or of tvdnn.optim."""
    kind, _, rest = case.settings["trainer"]["optimizer"].partition("(")
    given: Mapping[str, Any] = eval(f"dict({rest}", {"LR": lr})
    return lambda *params: getattr(package, kind)(*params, **given)


class _Loop:
    """Torch's loop of a loss and an optimizer, with accumulation over parts of the batch."""

    def __init__(self, net: nn.Module, case: Case, data: Data, form: Form, lr: float) -> None:
        self.net, self.case, self.data = net, case, data
        self.shape = output_shape(case, data)
        self.device, self.dtype = form
        wide = torch.promote_types(self.dtype, torch.float32)
        self.loss = loss_of(case, self.shape).to(self.device, wide)
        trained = [param for param in net.parameters() if param.requires_grad]
        self.optimizer = optimizer_of(case, lr, torch.optim)(trained)

    def step(self, step: int) -> Tensor:
        loss = self.grads(step)
        self.optimizer.step()
        return loss

    def grads(self, step: int) -> Tensor:
        """The loss, and the gradients of the parameters."""
        self.net.zero_grad(set_to_none=True)
        (x,) = self.data.inputs[step]
        y = self.data.target(self.loss, step, self.shape).to(self.device)
        parts = self.case.settings["trainer"].get("accumulate", 1)
        total = torch.zeros((), dtype=torch.float64)
        for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
            x_part = part.to(self.device, self.dtype, copy=True)
            loss = self._loss(x_part, target) / parts
            loss.backward()
            total += loss.detach().double().cpu()
        return total

    def _loss(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.net(x)
        outputs = [found] if isinstance(found, Tensor) else list(found)
        wide = torch.promote_types(self.dtype, torch.float32)
        y = y.to(wide) if y.is_floating_point() else y
        weights = self.case.settings["trainer"].get("loss_weights", (1.0,))
        pairs = zip(weights, outputs, strict=True)
        return torch.stack([w * self.loss(out.to(wide), y) for w, out in pairs]).sum()


def output_shape(case: Case, data: Data) -> tuple[int, ...]:
    """The shape of the network's first output."""
    net = torch_net(case, data, ("cpu", torch.float32))
    with torch.no_grad():
        found = net(*(x.clone() for x in data.inputs[0]))
    return tuple((found if isinstance(found, Tensor) else found[0]).shape)


def _outputs(found: Any, seen: Seen, prefix: str) -> dict[str, Tensor]:
    """The maps that a network returns, by name. `seen` records the form."""
    maps, form = maps_in(found)
    seen[f"{prefix}form"] = torch.tensor(form, dtype=torch.float64)
    return maps


def _change(net: nn.Module, case: Case, step: int) -> None:
    """Make the change behind the first step that the network's settings may ask for."""
    if step == 0 and "between" in case.settings:
        exec(case.settings["between"], {"net": net, "nn": nn})


def _evaluated(net: nn.Module, inputs: list[Tensor]) -> Seen:
    net.eval()
    with torch.no_grad():
        outputs = _outputs(net(*inputs), {}, "")
    return {f"output in eval mode {name}": _kept(out) for name, out in outputs.items()}


def _buffers(net: nn.Module, step: int) -> Seen:
    return {f"step {step + 1} buffer {name}": _kept(each) for name, each in net.named_buffers()}


def _kept(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.detach().to("cpu", torch.float64, copy=True)
