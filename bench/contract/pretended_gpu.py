"""A GPU that is not there: a device whose tensors lie in the memory of the CPU, so that code for GPUs runs anywhere.

    with pretended_gpu.session() as gpu:
        ...                       # a task on the device NAME
    gpu.events                    # what has waited for the device, or was copied to it or from it
    gpu.launches                  # kernels that a GPU would have been asked for

The device is PyTorch's PrivateUse1 with hooks in Python (torch.utils.backend_registration, an experimental interface). Its
tensors are wrapper subclasses under a `TorchDispatchMode`, so that vmap, torch.func.grad and autograd see it as they see CUDA.
It refuses what CUDA refuses: operations on tensors of two devices, `.numpy()`, and draws on the device by a generator of the
CPU. Numbers are those of the CPU.
"""

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

NAME = "pretended"
_ROOT = f"{Path(__file__).parents[2]}/"
# Where the line of an event is looked for.
_OURS = tuple(_ROOT + folder for folder in ("algorithms/", "bench/", "datasets/"))

# Operations that launch nothing.
_NO_KERNEL = frozenset(
    "view _unsafe_view expand permute transpose t slice select unsqueeze squeeze split split_with_sizes unbind alias detach "
    "as_strided diagonal unfold lift_fresh _reshape_alias narrow chunk movedim view_as_real empty empty_strided empty_like "
    "new_empty new_empty_strided sym_size sym_stride sym_numel sym_storage_offset is_same_size _version layout".split()
)
# Kernels of operations that have more than one, roughly.
_KERNELS = {
    "convolution": 2,
    "convolution_backward": 3,
    "nonzero": 3,
    "sort": 3,
    "argsort": 3,
    "_unique2": 5,
    "_linalg_eigh": 20,
}
_KERNELS |= dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), 6)
# Operations whose result the host needs, or on whose size it depends.
_WAITS = frozenset(
    "_local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive bincount equal _linalg_eigh is_nonzero "
    "repeat_interleave histc".split()
)
_INDEXED = frozenset("index _unsafe_index index_put index_put_ _index_put_impl_".split())
_ONE_DEVICE = frozenset(  # also of CPU tensors without dimensions
    "index_select gather cat stack mm bmm addmm baddbmm embedding nll_loss_forward scatter scatter_add scatter_add_".split()
)


class Event(NamedTuple):
    """Something for which the host waits: copies, too, of memory that is not pinned.

    Attributes:
        kind: "wait", "to host" or "to device".
        op: the operation.
        site: file and line of this project that asked for it; "" if there is none.
        num_bytes: of a copy.
    """

    kind: str
    op: str
    site: str
    num_bytes: int = 0


class PretendedTensor(Tensor):
    """A tensor of the device, around one of the CPU."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> "PretendedTensor":
        return Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            layout=raw.layout,
            device=torch.device(NAME, 0),
            requires_grad=False,
        )

    def __init__(self, raw: Tensor) -> None:
        self.raw = raw

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with _session():
            return func(*args, **(kwargs or {}))

    def tolist(self) -> list:
        return self.cpu().tolist()

    def numpy(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"can't convert {NAME}:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def __reduce_ex__(self, protocol: Any) -> Any:
        _session().note("to host", "torch.save", self.numel() * self.element_size())
        return PretendedTensor, (self.raw,)

    def __deepcopy__(self, memo: Any) -> "PretendedTensor":
        return PretendedTensor(self.raw.clone())

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"PretendedTensor({self.raw!r})"


class Session(TorchDispatchMode):
    """What runs on the device while it is there.

    Attributes:
        events: waits and copies, in order.
        launches: operation -> kernels.
        moved: bytes that kernels read and write.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.launches: Counter[str] = Counter()
        self.moved = 0

    def note(self, kind: str, op: str, num_bytes: int = 0) -> None:
        """Adds an event, with the line of this project that is running."""
        frame: Any = sys._getframe(1)
        while frame and (not frame.f_code.co_filename.startswith(_OURS) or frame.f_code.co_filename == __file__):
            frame = frame.f_back
        site = f"{frame.f_code.co_filename.removeprefix(_ROOT)}:{frame.f_lineno}" if frame else ""
        self.events.append(Event(kind, op, site, num_bytes))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, op = dict(kwargs or {}), func._schema.name.split("::")[1]
        tensors = _tensors([args, kwargs])
        ours, others = [t for t in tensors if is_pretended(t)], [t for t in tensors if not is_pretended(t)]
        device = kwargs.get("device")
        to_device = device is not None and torch.device(device).type == NAME
        if not (ours or to_device):
            return func(*args, **kwargs)
        if (generator := kwargs.get("generator")) is not None and generator.device.type == "cpu":
            raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu' ({op}).")
        if op in ("_to_copy", "copy_"):
            return self._copy(func, op, args, kwargs, to_device)
        host = [t for t in others if t.device.type == "cpu"]
        if ours and host:
            self._check_devices(op, args, host)
        if op in _WAITS or (op in _INDEXED and self._reads_a_mask(op, args)):
            self.note("wait", op)
        if device is not None:
            if torch.device(device).type == "meta":
                return func(*_mapped(_on_meta, args), **kwargs)
            kwargs["device"] = torch.device("cpu")
        result = func(*_mapped(_raw, args), **_mapped(_raw, kwargs))
        if torch.Tag.inplace_view in func.tags:  # matmul does so with what it returns
            with no_dispatch():
                return func(*args, **kwargs)  # the shape of the device's tensor, beside that of the one of the CPU
        self._count(op, tensors, result)
        return self._of_device(func, args, kwargs, result)

    def _copy(self, func: Any, op: str, args: Any, kwargs: dict, to_device: bool) -> Any:
        into, source = (None, args[0]) if op == "_to_copy" else args[:2]
        stays = to_device or "device" not in kwargs or kwargs["device"] is None
        on_device = is_pretended(into) if into is not None else (to_device or (stays and is_pretended(source)))
        if is_pretended(source) != on_device and not (op == "copy_" and source.dim() == 0 and on_device):
            self.note("to device" if on_device else "to host", op, source.numel() * source.element_size())
        if kwargs.get("device") is not None and to_device:
            kwargs["device"] = torch.device("cpu")
        result = func(*_mapped(_raw, args), **kwargs)
        self._count(op, [source], result)
        if into is not None:
            return into
        return PretendedTensor(result) if on_device else result

    def _check_devices(self, op: str, args: Any, host: list[Tensor]) -> None:
        """Raises RuntimeError where CUDA would; notes indices that are copied to the device."""
        allowed = all(t.dim() == 0 for t in host) and op not in _ONE_DEVICE
        if op in _INDEXED and is_pretended(args[0]) and not allowed:
            values = args[2] if len(args) > 2 else None
            allowed = not (isinstance(values, Tensor) and not is_pretended(values) and values.dim())
            if allowed:
                self.note("to device", f"{op} by an index of the CPU", sum(t.numel() * t.element_size() for t in host))
        if not allowed:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {NAME}:0 and cpu! (aten.{op})"
            )

    def _reads_a_mask(self, op: str, args: Any) -> bool:
        masks = [t for t in args[1] if isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8)]
        fills = op not in ("index", "_unsafe_index") and isinstance(args[2], Tensor) and args[2].numel() == 1
        return bool(masks) and not fills

    def _of_device(self, func: Any, args: Any, kwargs: dict, result: Any) -> Any:
        """The result as of the device; arguments that were written to are returned as they were given."""
        if func._schema.name == "aten::_local_scalar_dense":
            return result
        if not func._schema.is_mutable:
            return _mapped(_pretended, result)
        given = dict(zip((spec.name for spec in func._schema.arguments), args, strict=False)) | kwargs
        written = {
            frozenset(spec.alias_info.before_set): given[spec.name]
            for spec in func._schema.arguments
            if spec.alias_info is not None and spec.alias_info.is_write and spec.name in given
        }

        def one(spec: Any, value: Any) -> Any:
            info = spec.alias_info
            known = written.get(frozenset(info.before_set)) if info is not None and info.is_write else None
            return _mapped(_pretended, value) if known is None else known

        returns = func._schema.returns
        if len(returns) <= 1:
            return one(returns[0], result) if returns else result
        return tuple(one(spec, value) for spec, value in zip(returns, result, strict=True))

    def _count(self, op: str, inputs: list[Tensor], result: Any) -> None:
        if op in _NO_KERNEL:
            return
        self.launches[op] += 1 if op.startswith("_foreach") else _KERNELS.get(op, 1)
        self.moved += sum(t.numel() * t.element_size() for t in [*inputs, *_tensors(result)])


@contextlib.contextmanager
def session() -> Iterator[Session]:
    """The device is there, and everything on it is counted.

    Raises:
        ImportError, AttributeError: if this release of torch has no such interface.
    """
    _register()
    mode, before = Session(), torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    _sessions.append(mode)
    try:
        with torch.autograd.set_multithreading_enabled(False), mode:
            yield mode
    finally:
        _sessions.pop()
        torch._C._set_only_lift_cpu_tensors(before)


def is_pretended(tensor: object) -> bool:
    """Whether it is a tensor of the device."""
    return isinstance(tensor, PretendedTensor)


def on_host(tree: Any) -> Any:
    """A tree of dicts whose tensors of the device are those of the CPU behind them; nothing is counted."""
    if isinstance(tree, dict):
        return {key: on_host(part) for key, part in tree.items()}
    return tree.raw if isinstance(tree, PretendedTensor) else tree


_sessions: list[Session] = []


def _session() -> Session:
    if not _sessions:
        raise RuntimeError("A tensor of the pretended GPU was used outside of pretended_gpu.session().")
    return _sessions[-1]


@functools.cache
def _register() -> None:
    """Once in a process."""
    from torch.utils import backend_registration

    class Hook(backend_registration._DummyPrivateUse1Hook):
        def has_primary_context(self, dev_id: int) -> bool:
            return False

    torch.ones(
        1, requires_grad=True
    ).sum().backward()  # threads of autograd are started for the devices that are there now
    backend_registration._setup_privateuseone_for_python_backend(NAME, hook=Hook())
    torch.serialization.add_safe_globals([PretendedTensor])


def _mapped(fn: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, list | tuple):
        parts = [_mapped(fn, part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    return {key: _mapped(fn, part) for key, part in value.items()} if isinstance(value, dict) else value


def _tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    _mapped(found.append, value)
    return found


def _raw(tensor: Tensor) -> Tensor:
    return tensor.raw if isinstance(tensor, PretendedTensor) else tensor


def _pretended(tensor: Tensor) -> Tensor:
    return tensor if is_pretended(tensor) or tensor.device.type != "cpu" else PretendedTensor(tensor)


def _on_meta(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
