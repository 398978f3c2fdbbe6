"""draw: a random network, from a seed or by Hypothesis."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from hypothesis import strategies as st

from bench.generated import (
    banded,
    broadcast,
    computed,
    corners,
    forms,
    functionals,
    layers,
    lines,
    modules,
    motifs,
    owned,
    pointwise,
    reaching,
    rearrange,
    reduce,
    refused,
    refused_state,
    stages,
    sums,
    unary,
    views,
    written,
)
from bench.generated.kinds import KINDS, Kind
from bench.generated.program import INPUTS, Program, used_values
from bench.generated.returned import OBJECTS, REFUSED_FORMS
from bench.generated.source import Drawn, Seeded, Source, chance, choice, weighted
from bench.generated.writer import TORCH_FAILURES, RejectedError, Writer

MODULES = (
    broadcast,
    computed,
    corners,
    forms,
    functionals,
    layers,
    lines,
    modules,
    motifs,
    owned,
    pointwise,
    rearrange,
    reduce,
    refused,
    refused_state,
    stages,
    sums,
    unary,
    views,
    written,
    reaching,
)  # whose kinds are registered
SIDES = (6, 8, 5, 4, 7, 3, 10, 13, 12, 2, 1, 9)
FEW_SIDES = (8, 7, 16)
REFUSED = 1  # percent of the networks that hold what tvdnn refuses, drawn on purpose
BANDED = 10  # percent of the others whose samples are cut into bands
TRIES = 4  # draws of one statement before the network goes on without
STRIDED = re.compile(r"_\(|[-+*/]=|inplace=True|Asking|Writing")
OF_LAYOUT = "Laid("  # which goes by the memory format of the inputs
POLICIES = ("vdnn-all", "vdnn-conv", "tvdnn-heuristic", "vdnn-dyn", "auto")
SHARES = (50, 20, 15, 8, 7)  # of the draws: plans near the floor take long


def drawn_from_seed(
    seed: int, kinds: Iterable[str] = (), *, few: bool = False, refused: int = REFUSED
) -> Program:
    """The network of a seed; of these kinds where any are named, of few sizes where asked.

    So many percent of the networks hold what tvdnn refuses.
    """
    return draw_program(Seeded(seed), kinds, few=few, refused=refused)


@st.composite
def programs(draw: Callable[[st.SearchStrategy[int]], int]) -> Program:
    """Networks as Hypothesis draws and shrinks them."""
    return draw_program(Drawn(draw))


def draw_program(
    source: Source, kinds: Iterable[str] = (), *, few: bool = False, refused: int = REFUSED
) -> Program:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if chance(source, refused):
            return _refused_program(source, [KINDS[name] for name in kinds])
        if not kinds and chance(source, BANDED):
            return banded.program(source)
        ours = choice(source, (0, 0, 30, 100))
        w = Writer(source, training=not chance(source, 15), ours=ours, few=few)
        batch = choice(source, (2, 4) if few else (2, 3, 4, 1, 5))
        trains = chance(source, 20)
        _draw_inputs(w, batch, 1 if trains else weighted(source, (1, 2, 3), (75, 20, 5)))
        allowed = [KINDS[name] for name in kinds] or _supported()
        for _ in range(source.integer(2, 12)):
            _grow(w, allowed)
        if not chance(source, 5):
            _train_something(w)
        if trains and (program := _trainer_program(w, batch)) is not None:
            return program
        return _module_program(w)


def _supported() -> list[Kind]:
    return [kind for kind in KINDS.values() if not kind.planned and not kind.refused]


def _refused_program(source: Source, kinds: list[Kind]) -> Program:
    """A small network with one thing that tvdnn refuses, of these kinds where any are named."""
    w = Writer(source, training=True)
    w.input(choice(source, ((2, 4, 2, 6), (4, 8, 4, 4), (2, 3, 5, 5))), grad=chance(source, 30))
    for _ in range(source.integer(0, 2)):
        _grow(w, _supported())
    w.line("{0} * 1", "x")
    if not kinds and chance(source, 4):
        return w.program([*w.values][-1:], choice(source, (*REFUSED_FORMS,)), policy="auto")
    kinds = kinds or [kind for kind in KINDS.values() if kind.refused]
    before = len(w.lines)
    while len(w.lines) == before:
        _grow(w, kinds)
    last = [line.targets[0] for line in w.lines if line.targets][-1]
    found: dict[str, Any] = {"opaque": True} if _is_opaque(w) else {}
    if any(OF_LAYOUT in each.text for each in (*w.members, *w.lines)):
        found["channels_last"] = True
    return w.program([last], "one", policy=choice(source, POLICIES), sections=2, **found)


def _draw_inputs(w: Writer, batch: int, count: int) -> None:
    first = _input_shape(w, batch)
    for number in range(count):
        same = number and chance(w.source, 60)
        w.input(first if same else _input_shape(w, batch), grad=chance(w.source, 30))


def _input_shape(w: Writer, batch: int) -> tuple[int, ...]:
    if chance(w.source, 8):
        return (batch, w.source.integer(1, 20))
    if chance(w.source, 10):
        return (batch, choice(w.source, (3, 4, 1, 8)), choice(w.source, (8, 7, 12, 5, 2)))
    c = choice(w.source, (3, 8) if w.few else (3, 4, 1, 2, 8, 6, 5, 16))
    sides = FEW_SIDES if w.few else SIDES
    height = choice(w.source, sides)
    return batch, c, height, height if chance(w.source, 50) else choice(w.source, sides)


def _grow(w: Writer, kinds: list[Kind]) -> None:
    """Writes one more kind behind a value, if one of a few draws fits."""
    for _ in range(TRIES):
        name = w.pick(w.named("map", "row", "last", "line", "groups", "number"))
        fitting = [kind for kind in kinds if w.kind(name) in kind.reads]
        if not fitting:
            continue
        kind = weighted(w.source, fitting, [each.weight for each in fitting])
        mark = w.mark()
        try:
            kind.draw(w, name)
            if kind.changes and not _is_differentiable(w):
                raise RejectedError("autograd needs a value that is changed")
            return
        except RejectedError:
            w.back(mark)


def _train_something(w: Writer) -> None:
    """Ends the network with a layer where its last value depends on no parameter."""
    last = _ends(w)[0]
    layers = {"map": ("conv2d", "conv2d_depthwise", "batch_norm"), "row": ("linear",)}
    if w.kind(last) not in layers or _is_trained(w, last):
        return
    mark = w.mark()
    try:
        KINDS[choice(w.source, layers[w.kind(last)])].draw(w, last)
    except RejectedError:
        w.back(mark)


def _is_trained(w: Writer, output: str) -> bool:
    """Whether a parameter gets a gradient of this output."""
    net, inputs = _made(w, [output])
    out = net(*(x.detach() for x in inputs))[0]
    return bool(out.requires_grad)


def _made(w: Writer, outputs: list[str]) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """The network so far as a module, and inputs."""
    namespace: dict[str, Any] = {}
    exec(w.program(outputs, "tuple").printed(), namespace)
    inputs = [torch.randn(each.shape, requires_grad=each.grad) for each in w.inputs]
    return namespace["make"](), inputs


def _is_differentiable(w: Writer) -> bool:
    """Whether torch computes gradients of the network so far."""
    net, inputs = _made(w, list(w.values))
    try:
        wanted = [out for out in net(*inputs) if out.requires_grad]
        if wanted:
            torch.autograd.backward([out.sum() for out in wanted])
    except TORCH_FAILURES:
        return False
    return True


def _module_program(w: Writer) -> Program:
    """What a user's loop trains: any outputs in any form."""
    ends = _ends(w)
    count = 1 if chance(w.source, 45) else min(len(ends), w.source.integer(1, 3))
    outputs = ends[:count]
    if len(outputs) > 1 and chance(w.source, 10):
        outputs.append(outputs[0])
    forms = ("one",) if len(outputs) == 1 and chance(w.source, 80) else ("tuple", "dict")
    forms += ("pair",) if len(outputs) == 2 else ()
    form = "list" if chance(w.source, 3) else choice(w.source, forms)
    form = choice(w.source, (*OBJECTS,)) if chance(w.source, 5) else form
    return w.program(outputs, form, **_settings(w))


def _ends(w: Writer) -> list[str]:
    """Values that may be returned: first the last one, then those that nothing reads."""
    names = w.named("map", "row")
    if not names or chance(w.source, 15):
        names = w.named("map", "row", "line", "last", "groups", "number")
    read = used_values(w.program([], "tuple"))
    last = [line.targets[0] for line in reversed(w.lines) if line.targets]
    first = next((name for name in last if name in names), names[0])
    rest = [name for name in names if name != first]
    unread = [name for name in rest if name not in read]
    inner = [name for name in rest if name in read and name not in INPUTS]
    return [first, *unread, *(inner if chance(w.source, 20) else [])]


def _settings(w: Writer, *, trainer: bool = False) -> dict[str, Any]:
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
    if _is_opaque(w):
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
    """Whether it may hang on the memory format of inputs what the network computes.

    A plan is made for inputs whose channels come first. So what is a view by them, and what of it
    an operation in place writes, may be a copy by others, which tvdnn does not tell apart.
    """
    texts = [each.text for each in (*w.members, *w.lines)]
    return any(STRIDED.search(text) for text in texts)


def _is_opaque(w: Writer) -> bool:
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


def _trainer_program(w: Writer, batch: int) -> Program | None:
    """What Trainer trains: losses of one or two outputs. None where no parameter is trained."""
    first, *rest = _ends(w)
    if w.kind(first) in ("last", "line") or _is_opaque(w) or not _is_trained(w, first):
        return None
    outputs = [first]
    same = [name for name in rest if w.shape(name) == w.shape(first)]
    if same and chance(w.source, 40):
        outputs.append(same[0])
    settings = _settings(w, trainer=True)
    for name in ("evaluates", "parameters", "channels_last"):
        settings.pop(name, None)
    of_classes = w.kind(first) in ("map", "row")
    settings["trainer"] = _trainer(w, batch, len(outputs), of_classes=of_classes)
    if "accumulate" in settings["trainer"]:
        settings.pop("budget", None)  # the sums of gradients need room that the floor has not
    return w.program(outputs, "one" if len(outputs) == 1 else "tuple", **settings)


def _trainer(w: Writer, batch: int, count: int, *, of_classes: bool) -> Mapping[str, Any]:
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
