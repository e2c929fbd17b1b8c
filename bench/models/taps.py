"""What goes into and comes out of the layers of a model, of any kind, while it runs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bench.models.base import Params

_FUNCTIONS = (F.linear, F.conv2d)


class Call(NamedTuple):
    """One use of a layer.

    Attributes:
        function: `F.linear` or `F.conv2d`.
        input, weight, output: of it.
        options: of a convolution: stride, padding, dilation, groups.
    """

    function: Callable[..., Tensor]
    input: Tensor
    weight: Tensor
    output: Tensor
    options: tuple


class Taps(TorchFunctionMode):
    """Within `with Taps(params) as taps`, layers with weights of params are noted, and their inputs changed.

    Attributes:
        calls: layer -> its uses, in order.
    """

    def __init__(self, params: Params, change: Callable[[str, Tensor], Tensor] | None = None) -> None:
        """
        Args:
            params: of the model that runs, the same tensors.
            change: (layer, its input) -> the input that it gets instead.
        """
        super().__init__()
        self._layers = {
            id(leaf): name.removesuffix(".weight") for name, leaf in params.items() if name.endswith(".weight")
        }
        self._change = change
        self.calls: dict[str, list[Call]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = self._layers.get(id(args[1])) if func in _FUNCTIONS and len(args) > 1 else None
        if layer is None:
            return func(*args, **(kwargs or {}))
        given, *others = args
        if self._change is not None:
            given = self._change(layer, given)
        output = func(given, *others, **(kwargs or {}))
        self.calls.setdefault(layer, []).append(Call(func, given, args[1], output, _options(others[2:], kwargs or {})))
        return output


def _options(positional: list, named: dict[str, Any]) -> tuple:
    """Stride, padding, dilation and groups of a convolution."""
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    return tuple(
        (
            defaults | dict(zip(defaults, positional, strict=False)) | {k: named[k] for k in defaults if k in named}
        ).values()
    )
