"""Whether numbers of the GPU are those of the CPU, the same again, and the same after a state was stored."""

import itertools
import tempfile
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import algorithms
from algorithms.shared import calibration
from algorithms.shared.base import Algorithm
from bench.contract.cases import Case, said_by
from bench.contract.toy import difference, toy_task, train
from bench.contract.traced import traced
from bench.gpu_check.report import explained
from bench.gpu_check.session import Session, distance, numerics
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import Checkpoints, on_host
from bench.simulation.engines import ENGINES
from bench.simulation.evaluation import evaluate
from bench.simulation.graphs import Graphs, cuda_graphs
from bench.simulation.task import Task

_CLUSTERS = {"num_clusters": 2, "encoder_rounds": 2, "classifier_rounds": 2}
METHODS: dict[
    str, dict[str, Any]
] = {  # one of each kind, with options for a few clients and rounds; the commonest first
    "fedavg": {},
    "scaffold": {},
    "moon": {},
    "fedconcat": _CLUSTERS,
    "fedconcat-id": {**_CLUSTERS, "inference_images": 200},
    "ccvr": {},
    "fedcat": {},
    "fedgen": {"generator_steps": 3, "hidden_width": 16},
    "fedcollab": {"discriminator_rounds": 20},
    "feddyn": {},
    "fedadam": {},
    "fednova": {},
    "fedsam": {},
    "fedntd": {},
    "fedlc": {},
    "fedproto": {},
    "fedrep": {},
    "ditto": {},
    "pfedme": {},
    "per-fedavg": {},
    "fedrod-personal": {},
    "ifca": {"num_clusters": 2},
    "clusamp": {},
    "fedcluster": {"eps1": 2.0},
    "local": {},
    "centralized": {},
}
IMAGES = {"model": "simple-cnn", "shape": (3, 16, 16), "dataset": "cifar10", "transform": "fedconcat"}
_KINDS: dict[str, dict[str, Any]] = {"mlp": {}, "cnn": {**IMAGES, "local_epochs": 1, "rounds": 2}}
_TOLERANCE = 1e-8  # of float64, where sums are in another order
_FEW, _MANY = 1, 4  # local steps
_ROUNDS = 5  # a block of all clients is replayed from the third on, another from the fourth
_DRAWN = ("fedavg", "scaffold")  # methods that are trained on half of the clients, too


def right(session: Session) -> None:
    """float64: both engines on the device against the loop on the CPU, and against themselves."""
    compared = 0
    with mock.patch.object(calibration, "_LEAST_STEPS", 20):
        for kind, name in itertools.product(_KINDS, METHODS):
            case = _case(name)
            expected = _trained(case, _toy(case, "cpu", "loop", **_KINDS[kind]))
            for engine in ENGINES:
                what = f"{name}, {kind}, {engine}"
                try:
                    first, again = (
                        _trained(case, _toy(case, session.device, engine, **_KINDS[kind])) for _ in range(2)
                    )
                    found = difference(first, expected, _TOLERANCE), difference(again, first)
                except Exception as error:
                    found = explained(error), ""
                for how, base in zip(found, ("from the CPU", "from itself"), strict=True):
                    if how:
                        session.report.wrong(f"{what}, {base}", how)
                compared += 1
                session.report.summarise(f"{compared} runs compared, {_num_wrong(session, 'right')} wrong")
    session.report.note("runs compared", compared)


def rounding(session: Session) -> None:
    """float32: how far from the CPU, with TF32 and without, and whether two runs are equal bit by bit."""
    case, kind = _case("fedavg"), {**IMAGES, "dtype": torch.float32}
    expected = train(case.method, _toy(case, "cpu", "loop", **kind))["params"]
    found = {}
    for tf32, engine in itertools.product((False, True), ENGINES):
        with numerics(tf32=tf32):
            first, again = (train(case.method, _toy(case, session.device, engine, **kind))["params"] for _ in range(2))
        found[f"{engine}, TF32 {'on' if tf32 else 'off'}"] = one = {
            "from the CPU": distance(first, expected),
            "from itself": distance(again, first),
        }
        session.report.note(f"{engine}, TF32 {'on' if tf32 else 'off'}", one)
    session.report.summarise(", ".join(f"{what}: {one['from the CPU']:.1e}" for what, one in found.items()))


def captured(session: Session) -> None:
    """float32: runs whose blocks are replayed as CUDA graphs have the bits of runs without, and which have none."""
    compared, never = 0, []
    for name, share in [*((name, 1.0) for name in METHODS), *((name, 0.5) for name in _DRAWN)]:
        case, what = _case(name), f"{name}, share {share:g}"
        own = {"dtype": torch.float32, "rounds": _ROUNDS, "sizes": (24,) * 4, "participation": share}
        task = _toy(case, session.device, "vectorised", **{**IMAGES, **own})
        graphs = Graphs(cuda_graphs() if session.on_gpu else traced, least_left=0)
        try:
            how = difference(_trained(case, replace(task, graphs=graphs)), _trained(case, task))
        except Exception as error:
            how = explained(error)
        if how := how or ", ".join(graphs.notes):  # a graph with other bits is not used, and is a mistake all the same
            session.report.wrong(what, how)
        found = {"captured": graphs.num_captured, "proven": graphs.num_proven, "not captured": graphs.not_captured}
        session.report.note(what, found)
        compared, never = compared + 1, never + ([] if graphs.num_proven else [what])
        wrong, listed = _num_wrong(session, "captured"), "; ".join(never) or "none"
        session.report.summarise(f"{compared} runs compared, {wrong} wrong; no graph was used in: {listed}")
        if Graphs.broken:
            raise RuntimeError(f"nothing can be captured any more: {Graphs.broken}")


def waits(session: Session) -> None:
    """Where the host waits for the device in a local step: nowhere, or the vectorised engine has no use."""
    if not session.on_gpu:
        session.report.summarise("not measured: only a GPU can be waited for")
        return
    waiting = []
    for name, engine in itertools.product(METHODS, ENGINES):
        case = _case(name)
        few, many = (_waits_of(case, session.device, engine, steps) for steps in (_FEW, _MANY))
        session.report.note(f"{name}, {engine}", {"of a round": sum(few.values()), "of more steps": grown(few, many)})
        waiting += [f"{name} ({engine})"] if grown(few, many) else []
    session.report.summarise(f"{', '.join(waiting) or 'none'} of {len(METHODS)} methods wait in local steps")


def grown(few: Counter, many: Counter) -> dict[str, int]:
    """Place -> how much more often the host waits there in the longer of two runs."""
    return {place: count - few[place] for place, count in many.items() if count > few[place]}


def resumed(session: Session) -> None:
    """A round from a state that was stored and read again gives what the round from the state in memory gives."""
    compared = 0
    with tempfile.TemporaryDirectory() as scratch, mock.patch.object(calibration, "_LEAST_STEPS", 20):
        for name, engine in itertools.product(METHODS, ENGINES):
            case = _case(name)
            task = _toy(case, session.device, engine)
            try:
                how = _after_storing(case.method, task, Folder(f"{scratch}/{name}-{engine}"))
            except Exception as error:
                how = explained(error)
            if how:
                session.report.wrong(f"{name}, {engine}", how)
            compared += 1
            session.report.summarise(f"{compared} runs compared, {_num_wrong(session, 'resumed')} wrong")
    session.report.note("runs compared", compared)


def _after_storing(method: Algorithm, task: Task, folder: Folder) -> str:
    """How the next round from a stored state differs from the next round; "" if it does not."""
    state, checkpoints = method.step(task, method.init(task)), Checkpoints(folder, {}, 0)
    checkpoints.save({"state": state})
    back = checkpoints.load(task.device)["state"]
    return difference(on_host(method.step(task, back)), on_host(method.step(task, state)))


def _case(name: str) -> Case:
    method = algorithms.make(name, **METHODS[name])
    return Case(name, method, said_by(method))


def _toy(case: Case, device: str, engine: str, **own: Any) -> Task:
    """A toy task on which a method can be trained."""
    return toy_task(device=device, engine=engine, **case.settings(**own))


def _trained(case: Case, task: Task) -> dict[str, Any]:
    """The state after all rounds, on the host, and the scores of what is deployed then."""
    state = train(case.method, task)
    deployed = case.method.deploy(task, state, torch.arange(task.population))
    scores = evaluate(task, deployed) if deployed else {}
    return {**on_host(state), "scores": {name: torch.tensor(score) for name, score in scores.items()}}


def _waits_of(case: Case, device: str, engine: str, steps: int) -> Counter:
    """Place in the code -> how often the host waits there in the second round of a method."""
    own = {**IMAGES, "dtype": torch.float32, "sizes": (24,) * 4, "local_epochs": None, "local_steps": steps}
    task = _toy(case, device, engine, **own)
    state = case.method.step(task, case.method.init(task))  # what is only done once in a process is done here
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            case.method.step(task, state)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = [f"{Path(one.filename).name}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]
    return Counter(places)


def _num_wrong(session: Session, name: str) -> int:
    return len(session.report.sections[name]["wrong"])
