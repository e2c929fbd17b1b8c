"""Every wrapper around every method: a pair trains, and both are seen in what it deploys, or it is refused before a run begins.

docs/methods.md has a table of this, which must say the same.
"""

import functools
import math
import re

import pytest
import torch

import algorithms
from algorithms.shared import calibration
from algorithms.shared.base import Algorithm, State
from bench.config.resolve import wrappers
from bench.simulation.evaluation import evaluate
from bench.simulation.task import Task
from tests.support import kinds, manual
from tests.support.pairs import NEEDED, SIZES, pair, refusal, rounds_for
from tests.support.toy import toy_task, train

METHODS = manual.ROOT / "docs" / "methods.md"
# Pairs that by their definition deploy what the base alone does, and why.
AS_ALONE = {("fedcollab", "local"): "clients that train alone do so in every coalition"}
# Bases that are FedAvg on the toy task but for what they deploy, and why.
AS_FEDAVG = {"fedbn": "its model has no batch normalisation"}

# Trained on the engine vectorised; all others on loop, which is faster with so few examples.
VECTORISED = ("moon", "scaffold", "fedbabu", "ditto")


@pytest.fixture(scope="module", autouse=True)
def short_calibrations():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_LEAST_STEPS", 5)
        yield


@pytest.mark.parametrize("base", kinds.others_slow(algorithms.REGISTRY))
def test_every_pair_trains_with_both_or_is_refused_and_the_manual_says_so(base):
    found = {wrapper: outcome(wrapper, base) for wrapper in wrappers()}
    (row,) = [cells for cells in manual.table(METHODS, "base") if base in manual.codes(cells[0])]
    said = {wrapper: cell for names, cell in zip(groups(), row[1:], strict=True) for wrapper in names}
    assert said == found, "`python -m tests.support.methods_page` writes the table anew"


def groups() -> list[list[str]]:
    """The wrappers of each column of the table."""
    heading = re.search(r"^\| base \| (.*) \|$", METHODS.read_text(), re.MULTILINE)
    return [manual.codes(cell) for cell in heading.group(1).split("|")]


def outcome(wrapper: str, base: str) -> str:
    """What the table says of a pair: whether it trains, perhaps with some options of the base, or is refused."""
    needed, refused = NEEDED.get((wrapper, base), {}), refusal(wrapper, base)
    assert refused or not needed
    if refused:
        missing = [name for name in (wrapper, base) if not re.search(rf"(?<![\w-]){name}(?![\w-])", refused)]
        assert not missing and refused.endswith(".") and ". " not in refused, refused
    if refused and not needed:
        return "no"
    around, place = pair(wrapper, base, **needed), ("vectorised" if base in VECTORISED else "loop", rounds_for(base))
    both, plain = deployed(around, *place), deployed(around.base, *place)
    assert same(both, plain) == ((wrapper, base) in AS_ALONE), f"{wrapper} around {base}, and {base} alone"
    if not refusal(wrapper, "fedavg") and base not in AS_FEDAVG:
        around_fedavg = pair(wrapper, "fedavg")
        if not same(plain, deployed(around_fedavg.base, *place)):
            assert not same(both, deployed(around_fedavg, *place)), f"{wrapper} around {base}, and around fedavg"
    return " ".join(f"`{key}={value}`" for key, value in needed.items()) or "yes"


@functools.cache
def deployed(method: Algorithm, engine: str, rounds: int) -> torch.Tensor:
    """The params that a method deploys after so many rounds [n]; its test metrics are finite."""
    task = task_of(engine, rounds)
    # Like a run of the harness, a wrapper that only changes what is deployed starts from the finished run of its base.
    state = last_state(method.base if method.post_hoc else method, engine, rounds)
    model = method.deploy(task, state, torch.arange(task.population))
    assert all(map(math.isfinite, evaluate(task, model).values()))
    return torch.cat([leaf.flatten() for leaf in model.params.values()])


@functools.cache
def last_state(method: Algorithm, engine: str, rounds: int) -> State:
    return train(method, task_of(engine, rounds))


@functools.cache
def task_of(engine: str, rounds: int) -> Task:
    return toy_task(sizes=SIZES, engine=engine, rounds=rounds, local_epochs=1, batch_size=5)


def same(some: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether numbers are equal up to rounding."""
    return some.shape == others.shape and torch.allclose(some, others, rtol=0, atol=1e-10)
