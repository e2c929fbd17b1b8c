"""CUDA graphs of the vectorised engine: a block of clients that comes again is launched as a whole.

A block is a fixed sequence of kernels: its batches and draws are made on the host, and nothing in it waits for the device. So
it can be captured once, with inputs at fixed addresses, and then be launched for the cost of copying the inputs there. A block
is captured when it comes for the second time, or the first, where all clients train in each round. The graph takes its place if
it gives the same bits.
"""

import functools
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.returned import tensors_from, update_from
from algorithms.shared.tree import Tree
from algorithms.shared.types import ClientOutputs, ClientView, OnClient
from bench.simulation.engines import Block, Clients, run_block

_SHARED = ("params", "buffers", "server")  # the tensors that all clients of a round share, if there are such


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


def cuda_graphs() -> Capture:
    """A way to capture functions, which have run before, as CUDA graphs.

    It raises RuntimeError if a function waits for the device or copies from the host, or the memory of the device is full.
    """
    pool = (
        torch.cuda.graph_pool_handle()
    )  # graphs never run at once, and what they return is copied before the next one runs

    def capture(fn: Callable[[Tree], Tree], example: Tree) -> Captured:
        inputs, graph = tree.map(torch.clone, example), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            outputs = fn(inputs)
        return Captured(inputs, outputs, graph.replay)

    return capture


class Graphs:
    """The captured blocks of one run.

    Captured are blocks of methods' own hooks that do not read the round. Other functions, which may hold tensors of one round,
    run as they always do, and so do hooks whose graph gave other bits or could not be made.

    Attributes:
        num_captured: how many blocks were captured, those that were forgotten included.
        not_captured: name of each hook that is not captured -> why, one clause.
    """

    def __init__(self, capture: Capture, *, most: int = 64, least_left: int = 4):
        """
        Args:
            capture: how.
            most: blocks that are remembered.
            least_left: more rounds than that must be left when a block is captured, which costs about one.
        """
        self._capture, self._most, self._least_left = capture, most, least_left
        self._blocks: OrderedDict[tuple, Captured | None] = OrderedDict()  # None: has come, but was not captured
        self.num_captured, self.not_captured = 0, dict[str, str]()

    @property
    def kept(self) -> list[Captured]:
        """The captured blocks, the one used last at the end."""
        return [found for found in self._blocks.values() if found]

    def run(self, task: Clients, fn: OnClient, block: Block, shared: dict[str, Any]) -> ClientOutputs:
        """fn on all clients of a block, as `bench.simulation.engines.run_block`."""
        hosted = {name: value for name, value in shared.items() if name not in _SHARED}
        inputs = {"given": block.given, "shared": {name: shared[name] for name in _SHARED if name in shared}}

        def usual(given: Tree) -> ClientOutputs:
            return run_block(task, fn, block._replace(given=given["given"]), {**hosted, **given["shared"]})

        hook = fn.args[0] if isinstance(fn, functools.partial) and fn.func in (tensors_from, update_from) else fn
        if not inspect.ismethod(hook) or hook.__qualname__ in self.not_captured:
            return usual(inputs)
        shapes = tuple((tuple(leaf.shape), leaf.dtype) for leaf in tree.leaves(inputs))
        # Objects are part of the key, and so live as long as it: their ids are of nobody else.
        objects = (_ById(hook.__self__), hook.__func__, _AsModel(task.model), _ById(task.federation))
        key = (*objects, shared["settings"], tuple(block.least), shapes)
        captured, has_come = self._blocks.get(key), key in self._blocks
        self._remember(key, captured)
        if captured:
            return captured(inputs)
        rounds_read: list[int] = []
        outcome = run_block(task, fn if has_come else _noting(fn, rounds_read), block, shared)
        settings = shared["settings"]
        if rounds_read:
            self.not_captured[hook.__qualname__] = "it reads the round"
        elif (has_come or settings.participation == 1) and settings.rounds - shared["round"] > self._least_left:
            self._capture_now(key, hook.__qualname__, usual, inputs, outcome)
        return outcome

    def _remember(self, key: tuple, found: Captured | None) -> None:
        self._blocks[key] = found
        self._blocks.move_to_end(key)
        if len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def _capture_now(self, key: tuple, name: str, usual: Callable[[Tree], Tree], inputs: Tree, outcome: Tree) -> None:
        """Captures a block, and keeps its graph if that gives what the block gave as usual."""
        try:
            captured = self._capture(usual, inputs)
            if _equal(captured(inputs), outcome):
                self._remember(key, captured)
                self.num_captured += 1
            else:
                self.not_captured[name] = "its graph gives other numbers"
        except RuntimeError as error:  # also where memory runs out
            self.not_captured[name] = str(error).splitlines()[0]


class _ById(NamedTuple):
    """An object as part of a key, equal to itself alone."""

    thing: Any

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.thing is self.thing


class _AsModel(NamedTuple):
    """A model as part of a key, equal to models that are made alike: some methods make one in each round."""

    model: Any

    def __hash__(self) -> int:
        return hash(type(self.model))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _AsModel):
            return False
        try:
            return self.model is other.model or bool(self.model == other.model)
        except Exception:  # models of labs may hold what cannot be compared, such as tensors
            return False


def _noting(fn: OnClient, rounds_read: list[int]) -> OnClient:
    """The same function, which notes when it reads the round: then what was captured in one round is wrong in others."""

    class Noting(ClientView):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            # `replace(view, ...)` reads all fields, and its result notes, too.
            if name == "round" and sys._getframe(1).f_globals.get("__name__") != "dataclasses":
                rounds_read.append(value)
            return value

    return lambda data, plan, view: fn(data, plan, Noting(**vars(view)))


def _equal(a: Tree, b: Tree) -> bool:
    """Whether all tensors of two trees of one structure have the same numbers; the host waits once."""

    def same(x: Tensor, y: Tensor) -> Tensor:
        return ((x == y) | ((x != x) & (y != y))).all()

    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return bool(torch.stack([same(x, y) for x, y in pairs]).all())
