"""The vectorised engine with one captured graph per shape of a block, replayed whenever such a block comes again.

A block of the vectorised engine is a fixed sequence of kernels: its batches and draws are made on the host, and nothing in it
waits for the device. So it can be captured once, with inputs at fixed addresses, and then be launched as a whole, for the cost
of one launch and of copying the inputs there.
"""

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from algorithms.shared import tree
from algorithms.shared.returned import tensors_from, update_from
from algorithms.shared.tree import Tree
from algorithms.shared.types import ClientOutputs, ClientView, OnClient
from bench.simulation.engines import ENGINES, Block, Clients, blocks_of, in_order, on_padded, refuse_loop_only

_SHARED = ("params", "buffers", "server")  # the tensors that all clients of a round share, if there are such
_WARM_UPS = 2  # runs before a capture, in which kernels are loaded and workspaces allocated


class Captured(NamedTuple):
    """A function of a tree that has been captured.

    Attributes:
        inputs: leaves that it reads, at fixed addresses.
        outputs: leaves that each replay overwrites.
        replay: runs it on what is in the inputs.
    """

    inputs: Tree
    outputs: Tree
    replay: Callable[[], object]

    def __call__(self, given: Tree) -> Tree:
        """What the function returns for a tree like the inputs; nobody overwrites it."""
        torch._foreach_copy_(tree.leaves(self.inputs), tree.leaves(given))
        self.replay()
        return tree.map(torch.clone, self.outputs)


Capture = Callable[[Callable[[Tree], Tree], Tree], Captured]  # (function, example of its inputs) -> captured


def cuda_graph(fn: Callable[[Tree], Tree], example: Tree) -> Captured:
    """Captures a function as a CUDA graph.

    Raises:
        RuntimeError: if it waits for the device, or copies from the host.
    """
    inputs = tree.map(torch.clone, example)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UPS):
            fn(inputs)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = fn(inputs)
    return Captured(inputs, outputs, graph.replay)


def traced(fn: Callable[[Tree], Tree], example: Tree) -> Captured:
    """Traces a function to its tensor operations, which a replay runs one after another: a captured graph for any device.

    As in a CUDA graph, Python runs but once, and tensors that fn reads beside its inputs are read where they were.
    """
    return _of_operations(*_trace(fn, example), example)


def compiled(fn: Callable[[Tree], Tree], example: Tree) -> Captured:
    """Traces a function and compiles its operations to fewer kernels, on a GPU replayed as CUDA graphs."""
    operations, outputs = _trace(fn, example)
    on_gpu = tree.leaves(example)[0].device.type == "cuda"
    fast = torch.compile(operations, fullgraph=True, mode="reduce-overhead" if on_gpu else "default")
    return _of_operations(fast, outputs, example)


class Graphs:
    """The vectorised engine of one process; a block is captured when it comes for the first time.

    Captured are blocks of methods' own hooks. Other functions, which may hold tensors of one round, run as they always do.

    Attributes:
        num_captured: how many blocks were captured, those that were forgotten included.
        num_uncaptured: how many blocks ran as they always do.
    """

    def __init__(self, capture: Capture = cuda_graph, most: int = 64):
        """
        Args:
            capture: how.
            most: captured blocks that are kept; each holds the memory of a round on the device.
        """
        self._capture, self._most = capture, most
        self._kept: OrderedDict[tuple, Captured] = OrderedDict()
        self._reads_round: set[tuple] = set()  # blocks of functions that depend on which round it is
        self.num_captured = self.num_uncaptured = 0

    @property
    def kept(self) -> list[Captured]:
        """The captured blocks, the one used last at the end."""
        return [*self._kept.values()]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Tasks of the vectorised engine are run by this one, for a while."""
        with mock.patch.dict(ENGINES, vectorised=self.run_vectorised):
            yield

    def run_vectorised(
        self, task: Clients, fn: OnClient, clients: list[int], shared: dict[str, Any], per_client: dict[str, Tree]
    ) -> ClientOutputs:
        """As `bench.simulation.engines.run_vectorised`."""
        refuse_loop_only(task.model)
        order, outcomes = [], []
        for block in blocks_of(task, clients, shared["round"], per_client):
            outcomes.append(self._run(task, fn, block, shared))
            order += block.positions
        return in_order(order, outcomes, task.device)

    def _run(self, task: Clients, fn: OnClient, block: Block, shared: dict[str, Any]) -> ClientOutputs:
        inputs = {"given": block.given, "shared": {name: shared[name] for name in _SHARED if name in shared}}
        hosted = {name: value for name, value in shared.items() if name not in _SHARED}
        hook = fn.args[0] if isinstance(fn, functools.partial) and fn.func in (tensors_from, update_from) else fn
        if not inspect.ismethod(hook):
            self.num_uncaptured += 1
            return _on_block(task, fn, block.least, hosted, inputs)
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in tree.leaves(inputs))
        # Objects are part of the key, and so live as long as it: their ids are of nobody else.
        objects = (_ById(hook.__self__), hook.__func__, _ById(task.model), _ById(task.federation))
        block_key = (*objects, shared["settings"], tuple(block.least), shapes)
        round_key = (*block_key, shared["round"])
        key = round_key if block_key in self._reads_round else block_key
        if key not in self._kept:
            rounds_read: list[int] = []
            watched = functools.partial(_on_block, task, _noting(fn, rounds_read), block.least, hosted)
            captured = self._capture(watched, inputs)
            if rounds_read:
                self._reads_round.add(block_key)
                key = round_key
            self._kept[key] = captured
            self.num_captured += 1
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key](inputs)


class _ById(NamedTuple):
    """An object as part of a key, equal to itself alone."""

    thing: Any

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.thing is self.thing


def _on_block(task: Clients, fn: OnClient, least: list[int], hosted: dict[str, Any], inputs: Tree) -> ClientOutputs:
    """fn on all clients of a block.

    Args:
        hosted: what clients share that are no tensors.
        inputs: all tensors: those "given" to each client and those "shared" by all.
    """
    run_one = functools.partial(on_padded(task, fn), {**hosted, **inputs["shared"]}, least)
    return torch.func.vmap(run_one)(inputs["given"])


def _noting(fn: OnClient, rounds_read: list[int]) -> OnClient:
    """The same function, which notes when it reads the round: then what was captured in one round is wrong in others."""

    class Noting(ClientView):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            if name == "round":
                rounds_read.append(value)
            return value

    return lambda data, plan, view: fn(data, plan, Noting(**vars(view)))


def _trace(fn: Callable[[Tree], Tree], example: Tree) -> tuple[Callable[..., list], Tree]:
    """The operations of a function, from the leaves of its inputs to those of its outputs, and a tree like its outputs."""
    found: list[Tree] = []

    def on_leaves(*leaves: torch.Tensor) -> list[torch.Tensor]:
        found.append(fn(_like(example, leaves)))
        return tree.leaves(found[-1])

    return make_fx(on_leaves)(*tree.leaves(example)), found[-1]


def _of_operations(operations: Callable[..., Any], like: Tree, example: Tree) -> Captured:
    inputs = tree.map(torch.clone, example)
    read = tree.leaves(inputs)
    outputs = _like(like, [leaf.clone() for leaf in operations(*read)])

    def replay() -> None:
        torch._foreach_copy_(tree.leaves(outputs), list(operations(*read)))

    return Captured(inputs, outputs, replay)


def _like(example: Tree, leaves: Any) -> Tree:
    """A tree of the structure of another with other leaves."""
    left = iter(leaves)
    return tree.map(lambda _: next(left), example)
