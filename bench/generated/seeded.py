"""Faults to seed: the mended causes of wrong results, each taken out again, and further ones.

Each is a change of the text of one function. Most networks stay right under each of them.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Fault:
    """A change of the text of a file."""

    name: str
    file: str
    old: str  # stands once in the file
    new: str  # takes its place
    wrong: str  # what the change does
    mended: bool = False  # the project had the fault once
    needs: str = ""  # a pattern in the source of every network that can meet the fault


MENDED: Final = (
    Fault(
        "two names",
        "tvdnn/trace/state/meta_copies.py",
        "for module in self._paths:",
        "for _, module in self.net.named_modules(remove_duplicate=False):",
        "a module of two names is left with meta copies as its parameters",
        mended=True,
    ),
    Fault(
        "residual's residual",
        "tvdnn/ops/batch_norm.py",
        'bare = op.kind == "batch_norm"',
        "bare = True",
        "what is fused with the normalization of a residual is dropped",
        mended=True,
        needs=r"(?i)batch_?norm.*batch_?norm",
    ),
    Fault(
        "sum over a concatenation",
        "tvdnn/ops/in_place.py",
        "values = b.values_in[target.buffer]",
        "values = b.values_in[target.buffer];"
        " values = [each for each in values if not b.is_range(b.buffer_of[each])]",
        "a sum is written over a concatenation in which others lie",
        mended=True,
        needs=r"cat\(",
    ),
    Fault(
        "no_grad",
        "tvdnn/trace/node_records.py",
        'meta["stops"] = not meta["graded"] or cuts_gradient(node)',
        'meta["stops"] = cuts_gradient(node)',
        "regions without gradients have them",
        mended=True,
        needs=r"no_grad",
    ),
    Fault(
        "detach_",
        "tvdnn/trace/node_records.py",
        'if torch_name(node) == "detach_":',
        'if torch_name(node) == "detach":',
        "who reads a map after detach_ sends it gradients",
        mended=True,
        needs=r"detach_",
    ),
    Fault(
        "learnable scalar",
        "tvdnn/ops/broadcast.py",
        "a.kernels.broadcast_grad_sums(*maps, a.writes[0].flatten(1, 2), **settings)",
        "a.kernels.broadcast_grad_sums(*maps, a.writes[0].flatten(1, 2), **settings);"
        ' a.writes[0].mul_(1 if any(kept) else a.attrs["sizes"][-1])',
        "the gradient of a learnable scalar is C times too large",
        mended=True,
        needs=r"Parameter",
    ),
    Fault(
        "pixels counted otherwise",
        "tvdnn/ops/buffers.py",
        "return replace(use, shape=(*sides, width))",
        "return use",
        "what reads a view gets the shape of the buffer",
        mended=True,
    ),
    Fault(
        "in-place operators",
        "tvdnn/trace/proxy_attributes.py",
        'self.tracer.create_proxy("call_function", operation, (self, other), {})',
        'self.tracer.create_proxy("call_function",'
        " getattr(operator, operation.__name__[1:]), (self, other), {})",
        "aliases of h keep the old value behind h += y",
        mended=True,
        needs=r" [-+*/]= [^1]",
    ),
    Fault(
        "dead statistics",
        "tvdnn/trace/node_records.py",
        'meta["kept"] |= self.side_effects.tracks(call)',
        'meta["kept"] |= False',
        "running statistics that no output depends on do not change",
        mended=True,
        needs=r"(?i)batch_?norm",
    ),
    Fault(
        "state of the module's",
        "tvdnn/engine/module_tensors.py",
        "        change_state(changes, self.params | self.buffers | self._held, self.device)",
        "        pass",
        "writes to buffers by no map vanish",
        mended=True,
        needs=r"Buffer\(",
    ),
    Fault(
        "maps into buffers",
        "tvdnn/trace/python/side_effects.py",
        "if call is None or source not in call.state:",
        "if False:",
        "writes of maps to buffers vanish",
        mended=True,
        needs=r"Buffer\(",
    ),
    Fault(
        "accumulation",
        "tvdnn/engine/accumulation.py",
        "[name for name in updated.names if name in sums]",
        "[name for name in self._core.module.params if name in sums]",
        "accumulated steps decay parameters that no output depends on",
        mended=True,
        needs=r"accumulate",
    ),
    Fault(
        "settings",
        "tvdnn/trace/guards/module_state.py",
        "[*self._entries()],",
        "[each.training for each in self._modules],",
        "settings changed after the first plan are not seen",
        mended=True,
        needs=r"'between'",
    ),
    Fault(
        "replaced members",
        "tvdnn/trace/guards/module_state.py",
        "self._filled == self._members",
        "True",
        "submodules and parameters replaced after the first plan are not seen",
        mended=True,
        needs=r"'between'",
    ),
    Fault(
        "order of terms",
        "tvdnn/ops/gradient_terms.py",
        "return [grad for _, grad in sorted(pairs, key=lambda pair: -pair[0])]",
        "return [grad for _, grad in pairs]",
        "terms of gradients add up in the order of the fused ops",
        mended=True,
        needs=r"(?i)batch_?norm|relu",
    ),
)
FURTHER: Final = (
    Fault(
        "part taken for a copy",
        "tvdnn/trace/node_records.py",
        'meta["view"], meta["parent"] = node, parent_of(node, meta["value"])',
        'meta["view"], meta["parent"] = node,'
        ' None if node.target is operator.getitem else parent_of(node, meta["value"])',
        "what an in-place operation writes into a slice is not seen in the whole",
    ),
    Fault(
        "write not followed",
        "tvdnn/trace/node_ops.py",
        "if stale is not None:",
        'if stale is not None and stale.op == "placeholder":',
        "who reads a map after a write that cannot be followed reads the old one",
    ),
    Fault(
        "biased variance",
        "tvdnn/ops/reduce_axes.py",
        "(1 if unbiased in (None, True) else 0)",
        "(1 if unbiased else 0)",
        "variances are biased where the call does not say",
        needs=r"var|std",
    ),
    Fault(
        "softmax of a negative dimension",
        "tvdnn/ops/softmax.py",
        "kept_first(axes, {dim % len(shape)})",
        "kept_first(axes, {abs(dim)})",
        "softmax over the last dimension goes over the second",
        needs=r"(?i)softmax",
    ),
    Fault(
        "uneven pads",
        "tvdnn/ops/remap.py",
        "even = (top, left) == (bottom, right) and",
        "even = top == bottom and",
        "a pad of other columns at the left than at the right becomes a convolution's",
        needs=r"(?i)pad",
    ),
    Fault(
        "tied gradient",
        "tvdnn/ops/optimizer.py",
        'for other in others:\n        b.add_pass(op, "add_grad"',
        'for other in others[1:]:\n        b.add_pass(op, "add_grad"',
        "of a parameter used twice one gradient counts",
    ),
    Fault(
        "shared gradient",
        "tvdnn/ops/gradient_sums.py",
        "if leaves or (others and b.is_shared(first)):",
        "if leaves:",
        "terms add up in a gradient that another value has, too",
    ),
    Fault(
        "output written over",
        "tvdnn/ops/in_place.py",
        'if "output" in OPERATORS[b.makers[value].kind].saves:',
        "if False:",
        "a map is written over whose maker reads it backward",
    ),
    Fault(
        "sign of a difference",
        "tvdnn/ops/broadcast.py",
        'if function == "add" and (number == 0 or op.attrs["scale"] == 1):',
        'if function == "add":',
        "the gradient of what is subtracted from a broadcast map has no coefficient",
        needs=r" - |sub",
    ),
    Fault(
        "shared statistics",
        "tvdnn/graph/fusion.py",
        'if op.kind == "batch_norm" and all(uses[name] == 1 for name in op.params[2:] if name)',
        'if op.kind == "batch_norm" and uses is not None',
        "running statistics of a layer used twice change in the order of the fused ops",
        needs=r"(?i)batch_?norm",
    ),
    Fault(
        "windows over the edge",
        "tvdnn/graph/fusion.py",
        "and pooled == (rows // 2, columns // 2)",
        "and pooled >= (rows // 2, columns // 2)",
        "a pooling in ceil mode is fused with a convolution of odd sides",
        needs=r"(?i)max_?pool",
    ),
)
FAULTS: Final = (*MENDED, *FURTHER)
