"""CUDA graphs of the vectorised engine: a block of clients that comes again is launched as a whole.

A block is a fixed sequence of kernels: its batches and draws are made on the host, and nothing in it waits for the device. So
it can be captured once, with inputs at fixed addresses, and then be launched for the cost of copying the inputs there.

A block is captured when it comes for the second time, or the first, where all clients train in each round. When it comes again,
in another round, it runs in both ways. The graph takes its place from then on, if it gave the same bits.
"""

import functools
import inspect
import sys
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from algorithms.shared import tree
from algorithms.shared.returned import tensors_from, update_from
from algorithms.shared.tree import Tree
from algorithms.shared.types import ClientOutputs, ClientView, OnClient
from bench.profiling import is_out_of_memory
from bench.simulation.engines import Block, Clients, run_block

# Why blocks run as always.
READS_ROUND, GIVES_OTHERS = "it reads the round", "its graph gives other numbers"
FALLING_RATE = "its learning rate falls from round to round"
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
    """A way to capture functions, which have run before, as CUDA graphs in memory that they share.

    Raises, when it captures:
        RuntimeError: if the function waits for the device or copies from the host, or the memory of the device is full.
    """
    # Graphs never run at once, and what they return is copied before the next one runs.
    pool, alive = torch.cuda.graph_pool_handle(), weakref.WeakSet[torch.cuda.CUDAGraph]()

    def capture(fn: Callable[[Tree], Tree], example: Tree) -> Captured:
        nonlocal pool
        if not alive:  # torch does not take a pool again of which nothing is left
            pool = torch.cuda.graph_pool_handle()
        inputs, graph = tree.map(torch.clone, example), torch.cuda.CUDAGraph()
        # Also after an error, what comes next runs on the stream of before.
        with torch.cuda.stream(torch.cuda.current_stream()):
            with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
                outputs = fn(inputs)
        alive.add(graph)
        return Captured(inputs, outputs, graph.replay)

    return capture


@dataclass
class _Known:
    """What is known of a block.

    Attributes:
        hook: the name of what runs in it.
        round: in which it was captured, or else came first.
        captured: None before its capture.
        is_proven: whether it gave the bits of the block in another round.
    """

    hook: str
    round: int
    captured: Captured | None = None
    is_proven: bool = False


class Graphs:
    """The captured blocks of one run.

    Captured are blocks of methods' own hooks that do not read the round. Other functions, which may hold tensors of one round,
    run as they always do, and so do hooks whose graph gave other bits.

    Attributes:
        num_captured: how many blocks were captured, those that were forgotten included.
        not_captured: name of each hook whose blocks run as always from now on -> why, one clause.
        num_proven: how many graphs took the place of their blocks.
        notes: what the user should know, a clause each; who tells it takes it away.
        broken: why no run of this process captures any more; "" if they may: after an error in a capture, torch may not be able
            to.
    """

    broken: ClassVar[str] = ""

    def __init__(self, capture: Capture, *, most: int = 64, least_left: int = 6):
        """
        Args:
            capture: how.
            most: blocks that are remembered.
            least_left: a block is captured if more rounds than that are left, with this one; a capture costs about three.
        """
        self._capture, self._most, self._least_left = capture, most, least_left
        self._blocks: OrderedDict[tuple, _Known] = OrderedDict()
        # Hooks of which a block was captured that did not come again in the next round.
        self._changing: set[str] = set()
        self._has_failed = False  # whether nothing is captured any more
        self._warned: dict[str, Any] = {}  # of `warnings`: what was told once
        self.num_captured, self.num_proven, self.not_captured, self.notes = 0, 0, dict[str, str](), list[str]()

    @property
    def kept(self) -> list[Captured]:
        """The captured blocks, the one used last at the end."""
        return [known.captured for known in self._blocks.values() if known.captured]

    def run(self, task: Clients, fn: OnClient, block: Block, shared: dict[str, Any]) -> ClientOutputs:
        """fn on all clients of a block: see `bench.simulation.engines.run_block`, whose arguments and result these are."""
        hook = fn.args[0] if isinstance(fn, functools.partial) and fn.func in (tensors_from, update_from) else fn
        inputs = {"given": block.given, "shared": {name: shared[name] for name in _SHARED if name in shared}}
        if not inspect.ismethod(hook) or self._has_stopped():
            return run_block(task, fn, block, shared)
        name, round = f"{type(hook.__self__).__name__}.{hook.__name__}", shared["round"]
        if shared["settings"].lr_decay < 1:  # a number within the block, another one in each round
            self.not_captured[name] = FALLING_RATE
        form = None if name in self.not_captured else _form(inputs, task.device.type)
        if not form:
            return run_block(task, fn, block, shared)
        # Objects are part of the key, and so live as long as it: their ids are of nobody else.
        objects = (_ById(hook.__self__), hook.__func__, _AsModel(task.model), _ById(task.federation))
        key = (*objects, shared["settings"], tuple(block.least), form)
        known = self._blocks.get(key)
        if known and known.captured:
            self._blocks.move_to_end(key)
            return known.captured(inputs) if known.is_proven else self._proved(known, task, fn, block, shared, inputs)
        rounds_read: list[int] = []
        with _watched(task.device, self._warned) as waits:
            outcome = run_block(task, _noting(fn, rounds_read), block, shared)
        is_new = known is None
        if rounds_read or (waits and not is_new):  # at the first run, libraries may wait once
            self._give_up(name, READS_ROUND if rounds_read else "the host waits for the GPU in it")
            return outcome
        comes_at_once = shared["settings"].participation == 1 and not self._changes(name, round)
        known = known or _Known(name, round)
        self._remember(key, known)
        comes_again = known.round != round or (is_new and comes_at_once)
        if comes_again and not waits and shared["settings"].rounds - round > self._least_left:
            hosted = {name: value for name, value in shared.items() if name not in _SHARED}
            known.round, known.captured = round, self._captured(name, task, fn, block, hosted, inputs)
        return outcome

    def _proved(
        self, known: _Known, task: Clients, fn: OnClient, block: Block, shared: dict[str, Any], inputs: Tree
    ) -> ClientOutputs:
        """What a block gives as always, with which its graph is compared, if this is another round than that of its capture."""
        outcome = run_block(task, fn, block, shared)
        if known.captured and shared["round"] != known.round:
            known.is_proven = _equal(known.captured(inputs), outcome)
            self.num_proven += known.is_proven
            if not known.is_proven:
                self._give_up(known.hook, GIVES_OTHERS)
                self.notes.append(f"{known.hook} runs without CUDA graphs, since one gave other numbers")
        return outcome

    def _captured(
        self, name: str, task: Clients, fn: OnClient, block: Block, hosted: dict[str, Any], inputs: Tree
    ) -> Captured | None:
        """The block captured; None if that fails."""

        def usual(given: Tree) -> ClientOutputs:
            return run_block(task, fn, block._replace(given=given["given"]), {**hosted, **given["shared"]})

        try:
            captured = self._capture(usual, inputs)
        except RuntimeError as error:
            self.not_captured[name] = why = str(error).splitlines()[0].rstrip(".")
            if not is_out_of_memory(error):
                Graphs.broken = why
            self._stop(why)
            return None
        self.num_captured += 1
        return captured

    def forget(self) -> bool:
        """Frees what is held on the device; returns whether something was."""
        held = bool(self._blocks)
        self._blocks.clear()
        return held

    def _stop(self, why: str) -> None:
        """Captures nothing any more in this run."""
        self._has_failed = True
        self.forget()
        self.notes.append(f"continues without CUDA graphs: {why}")

    def _has_stopped(self) -> bool:
        """Whether nothing is captured any more, in this run or in this process."""
        if Graphs.broken and not self._has_failed:
            self._stop(Graphs.broken)
        return self._has_failed

    def _remember(self, key: tuple, known: _Known) -> None:
        self._blocks.pop(key, None)  # the key that stays is that of the objects which a capture reads
        self._blocks[key] = known
        if len(self._blocks) > self._most:
            self._blocks.popitem(last=False)

    def _give_up(self, name: str, why: str) -> None:
        """From now on, blocks of a hook run as always."""
        self.not_captured[name] = why
        for key in [key for key, known in self._blocks.items() if known.hook == name]:
            del self._blocks[key]

    def _changes(self, name: str, round: int) -> bool:
        """Whether blocks of a hook were captured that did not come again; what did not is forgotten."""
        earlier = {key: known for key, known in self._blocks.items() if known.hook == name and known.round < round}
        unused = [key for key, known in earlier.items() if known.captured and not known.is_proven]
        if unused:
            self._changing.add(name)
        if name in self._changing:  # else each round would leave its data here
            unused += [key for key, known in earlier.items() if not known.captured and known.round < round - 1]
        for key in unused:
            del self._blocks[key]
        return name in self._changing


class _ById(NamedTuple):
    """An object as part of a key, equal to itself alone."""

    thing: Any

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.thing is self.thing


class _AsModel(NamedTuple):
    """A model as part of a key, equal to models of the same attributes: some methods make one in each round."""

    model: Any

    def __hash__(self) -> int:
        return hash(type(self.model))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _AsModel) or type(other.model) is not type(self.model):
            return False
        try:
            return self.model is other.model or bool(vars(self.model) == vars(other.model))
        except Exception:  # models of labs may hold what cannot be compared, such as tensors
            return False


def _form(given: Any, device: str) -> tuple | None:
    """The names of a tree in its order, with the shapes and types of its tensors; None if a leaf is no tensor on this kind of
    device: it would be a constant of a graph."""
    if isinstance(given, Tensor):
        return (tuple(given.shape), given.dtype) if given.device.type == device else None
    if not isinstance(given, dict | tuple | list):
        return None
    names = tuple(given) if isinstance(given, dict) else ()
    forms = tuple(_form(part, device) for part in (given.values() if isinstance(given, dict) else given))
    return None if None in forms else (type(given).__name__, names, forms)


def _noting(fn: OnClient, rounds_read: list[int]) -> OnClient:
    """The same function, which notes when it reads the round: then what was captured in one round is wrong in others."""

    class Noting(ClientView):
        def __getattribute__(self, name: str) -> Any:
            value = super().__getattribute__(name)
            # `replace(view, ...)` reads all fields, and its result notes, too.
            if name == "round" and sys._getframe(1).f_globals.get("__name__") != "dataclasses":
                rounds_read.append(value)
            return value

    return functools.wraps(fn)(lambda data, plan, view: fn(data, plan, Noting(**vars(view))))


@contextmanager
def _watched(device: torch.device, warned: dict[str, Any]) -> Iterator[list[str]]:
    """The places at which the host waits for a GPU meanwhile: what waits cannot be captured, and trying it may harm torch.

    Args:
        warned: the registry of `warnings` for the others that come meanwhile.
    """
    waits: list[str] = []
    if device.type != "cuda":
        yield waits
        return
    before = torch.cuda.get_sync_debug_mode()
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield waits
            finally:
                torch.cuda.set_sync_debug_mode(before)
    finally:
        waits += _waits_in(caught, warned)


def _waits_in(caught: list[warnings.WarningMessage], warned: dict[str, Any]) -> list[str]:
    """The places of the waits among warnings; others are given again, but for what torch says of its watch."""
    waits = []
    for one in caught:
        text = str(one.message)
        if "called a synchronizing" in text:
            waits.append(f"{one.filename}:{one.lineno}")
        elif "Synchronization debug mode" not in text:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, registry=warned)
    return waits


def _equal(a: Tree, b: Tree) -> bool:
    """Whether two trees on one kind of device have the same names, shapes and bits; the host waits once."""
    kinds = {leaf.device.type for side in (a, b) for leaf in tree.leaves(side)}
    forms = [_form(side, kind) for side in (a, b) for kind in kinds]
    if len(forms) != 2 or None in forms or forms[0] != forms[1]:
        return False
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return bool(torch.stack([(_bytes(x) == _bytes(y)).all() for x, y in pairs]).all())


def _bytes(x: Tensor) -> Tensor:
    return x.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
