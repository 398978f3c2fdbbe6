"""How tvdnn runs a drawn network: policy, sections, changes between steps, and a trainer."""

import re
from collections.abc import Mapping
from typing import Any

from bench.generated.source import chance, choice, weighted
from bench.generated.writer import Writer

STRIDED = re.compile(r"_\(|[-+*/]=|inplace=True|Asking|Writing")
POLICIES = ("vdnn-all", "vdnn-conv", "tvdnn-heuristic", "vdnn-dyn", "auto")
SHARES = (50, 20, 15, 8, 7)  # of the draws: plans near the floor take long


def drawn_settings(w: Writer, *, trainer: bool = False) -> dict[str, Any]:
    """How tvdnn runs the network beside keep: sections, and another policy.

    Parameters are replaced in a loop alone: a trainer's optimizer, as torch's, has the old ones.
    """
    settings: dict[str, Any] = {"policy": weighted(w.source, POLICIES, SHARES)}
    if chance(w.source, 60):
        settings["sections"] = choice(w.source, (2, 3))
    elif chance(w.source, 60):
        settings["chunk_size"] = choice(w.source, (512, 1024, 2048))
    if settings["policy"] in ("auto", "tvdnn-heuristic", "vdnn-dyn"):
        settings["budget"] = choice(w.source, (0.5, 0.0, 0.25))  # between floor and keep's peak
    if is_opaque(w):
        settings["opaque"] = True
    if chance(w.source, 5) and not _asks_for_strides(w):
        settings["channels_last"] = True
    if chance(w.source, 5):
        settings["parameters"] = "bfloat16"
    if chance(w.source, 20):
        settings["evaluates"] = True
    changes = [each for each in _changes(w) if not (trainer and _replaces(each))]
    if chance(w.source, 10) and changes:
        settings["between"] = choice(w.source, changes)
    return settings


def _asks_for_strides(w: Writer) -> bool:
    """Whether the network's values may depend on the memory format of its inputs.

    A plan is made for inputs whose channels come first. A view of such inputs may be a copy of
    inputs of another format, and an operation in place then writes the copy alone. tvdnn does not
    tell these apart.
    """
    texts = [each.text for each in (*w.members, *w.lines)]
    return any(STRIDED.search(text) for text in texts)


def is_opaque(w: Writer) -> bool:
    """Whether the network holds submodules that are to run as they are."""
    return any(member.name.startswith("opaque") for member in w.members)


def _changes(w: Writer) -> list[str]:
    """Statements about `net` that change it between two steps."""
    found = []
    for member in w.members:
        name, kind = member.name, member.text.partition("(")[0].rpartition(".")[2]
        if kind.startswith("BatchNorm"):
            found += [f"net.{name}.momentum = 0.7", f"net.{name}.eps = 0.1", f"net.{name}.eval()"]
        elif kind.startswith(("Conv", "Linear")):
            found += [
                f"net.{name}.requires_grad_(False)",
                f"net.{name}.weight.data.mul_(0.5)",
                f"net.{name}.weight = nn.Parameter(net.{name}.weight.detach() * 0.5)",
                f"net.{name}.load_state_dict(net.{name}.state_dict(), assign=True)",
            ]
        elif kind in ("ReLU", "Sigmoid", "Tanh", "ELU"):
            found.append(f"net.{name} = nn.SiLU()")
        elif kind == "Dropout":
            found.append(f"net.{name}.p = 0.0")
    return found


def _replaces(change: str) -> bool:
    """Whether a statement gives a layer other parameter objects."""
    return "nn.Parameter(" in change or "assign=True" in change


def drawn_trainer(w: Writer, batch: int, count: int, *, of_classes: bool) -> Mapping[str, Any]:
    losses = (
        "nn.CrossEntropyLoss()",
        "nn.MSELoss()",
        "nn.BCEWithLogitsLoss()",
        "nn.CrossEntropyLoss(label_smoothing=0.1)",
        "nn.CrossEntropyLoss(ignore_index=0)",
        "nn.CrossEntropyLoss(reduction='sum')",
        "nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, CHANNELS))",
        "nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.5, CHANNELS), label_smoothing=0.2)",
        "nn.MSELoss(reduction='sum')",
        "nn.BCEWithLogitsLoss(reduction='sum')",
        "nn.BCEWithLogitsLoss(pos_weight=torch.full((1,), 2.0))",
        "nn.BCEWithLogitsLoss(weight=torch.full((1,), 0.5))",
    )
    optimizers = (
        "SGD(lr=LR, momentum=0.9)",
        "SGD(lr=LR)",
        "SGD(lr=LR, momentum=0.9, nesterov=True)",
        "SGD(lr=LR, momentum=0.8, dampening=0.3, weight_decay=0.1)",
        "SGD(lr=LR, momentum=0.5, maximize=True)",
        "AdamW(lr=0.01, eps=0.01)",
        "AdamW(lr=0.002, betas=(0.8, 0.95), eps=0.001, weight_decay=0.3)",
        "AdamW(lr=0.002, eps=0.01, maximize=True)",
    )
    fitting = [each for each in losses if of_classes or "Entropy" not in each]
    found: dict[str, Any] = {
        "loss": choice(w.source, fitting),
        "optimizer": choice(w.source, optimizers),
    }
    if count > 1:
        found["loss_weights"] = (1.0, 0.4)
    parts = [k for k in (2, 3, 4, 5) if batch % k == 0]
    fixed = any(f"({batch}, " in line.text for line in w.lines)  # views that name the batch's size
    if parts and not fixed and chance(w.source, 50):
        found["accumulate"] = parts[0]
    return found
