"""The values of traced calls: tensors of the meta device, which have sizes and no data."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from ..errors import InputError
from ..functional import counted_batch_norm, on_meta
from ..ops.translate import function_of, rearranges_in_place, torch_name, translator_of
from .eager_fallback import REACHED, EagerEffects, among_results, reached
from .modules import LAYER_PACKAGES
from .python.side_effects import RefusedError, SideEffects
from .source_lines import FOREIGN, user_location
from .state.meta_copies import empty_like
from .traced_call import TracedCall


class MetaValues:
    """Runs the calls of nodes on the meta device; `inputs` are meta tensors by placeholder.

    `effects` says why the module that ran last must not run twice; None where it may. `tracked` are
    the names of its buffers that batch normalizations track.
    """

    def __init__(
        self, call: TracedCall, inputs: Mapping[str, Tensor], side_effects: SideEffects
    ) -> None:
        self._call, self._inputs = call, inputs
        self._copies, self._recorded = call.meta_copies.tensors, side_effects.recorded
        self.effects: str | None = None
        self.tracked: tuple[str, ...] = ()

    def of(self, node: fx.Node) -> Any:
        """The result of a node's call on the meta device; None where that is unknown.

        Raises InputError where torch refuses the sizes of a call that tvdnn knows.
        """
        if node.op == "output":
            return None
        if node.op == "placeholder":
            return self._inputs[str(node.target)]
        if node.op == "get_attr":
            name = str(node.target)
            return self._copies[name] if name in self._copies else self._recorded.values[name]
        if any(source.meta["value"] is None for source in node.all_input_nodes):
            return None
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["value"])
        if rearranges_in_place(node):
            return None
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self._call.evaluated(partial(self._evaluated, node, args, kwargs))
        except FOREIGN as error:
            if translator_of(node) is not None:
                raise InputError(self._refused_sizes(node, error)) from error
            return None

    def _refused_sizes(self, node: fx.Node, error: Exception) -> str:
        """Why torch refuses the sizes of a call: the layer or function, the shapes and the line."""
        module, what, sources = self._call.module, torch_name(node), node.all_input_nodes
        if type(module).__module__.startswith(LAYER_PACKAGES):
            what = f"{type(module).__name__}({module.extra_repr()})"
            sources = [each for each in sources if each.op != "get_attr"]
        shapes = [str(tuple(each.meta["value"].shape)) for each in sources]
        given = f"a tensor of shape {shapes[0]}" if len(shapes) == 1 else ""
        reason = str(error).rstrip(".")
        given = given or f"tensors of shapes {' and '.join(shapes)}"
        return f"{self._call.where()}: {what} does not take {given}: {reason}{user_location()}"

    def _evaluated(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "call_module":
            return self._run_module(node, args, kwargs)
        function = function_of(node, self._call.net)
        if _is_batch_norm(function, *args, **kwargs):
            return empty_like(args[0], args[0].dtype)
        return on_meta(function, *args, **kwargs)

    def _run_module(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """Run the module that is refused or runs as it is, and note its effects.

        Of a tuple with a tensor that it hands on the value is the tensor.
        """
        module = self._call.module
        with EagerEffects(module) as effects:
            value = module.forward(*args, **kwargs)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        self.effects, self.tracked = effects.found(given), effects.tracked
        refuse = partial(self._refuse_result, type(module).__name__)
        node.meta["among"] = among = among_results(value, refuse)

        def handed_on(made: Any) -> Any:
            return made if among is None else made[among[0]]

        if isinstance(handed_on(value), Tensor):
            node.meta[REACHED] = reached(
                node,
                module.parameters(),
                lambda args, kwargs: handed_on(module.forward(*args, **kwargs)),
            )
        return handed_on(value)

    def _refuse_result(self, module: str) -> NoReturn:
        reason = f"a further result of {module}, which runs by torch (one hands on one tensor)"
        raise RefusedError(self._call.refuse(reason))


def _is_batch_norm(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a call normalizes a batch and its sizes fit.

    Torch takes 2 ms for one on the meta device, and a network may have thousands.
    """
    if function not in (torch.nn.functional.batch_norm, counted_batch_norm) or not args:
        return False
    x, *rest = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor))
    fits = all(tensor.shape == x.shape[1:2] for tensor in rest if tensor.dim() > 0)
    return fits and x.numel() > x.shape[1]  # with one value a channel torch may refuse
