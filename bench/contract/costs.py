"""What a run costs, against what its method says before: bytes, gradients in rounds, and gradients in order to deploy."""

from typing import Any, NamedTuple

import torch

from algorithms.shared.base import Deployed
from bench.contract.cases import Case
from bench.contract.places import hooks_in_words
from bench.contract.rules import require
from bench.contract.toy import gradients_counted, toy_task, train
from bench.simulation.task import Task

_EXAMPLES = 20  # of each client: equal ones, so that every cohort costs the same


class _Run(NamedTuple):
    """A toy run that has ended.

    Attributes:
        state: the last one.
        in_rounds, to_deploy: examples of which gradients were computed.
    """

    case: Case
    task: Task
    state: Any
    deployed: Deployed
    in_rounds: int
    to_deploy: int

    @property
    def cohort(self) -> int:
        """Clients of a round."""
        return len(self.task.sample_cohort(0).ids)


def require_known_costs(case: Case, participation: float) -> str | None:
    """What to know of the costs of a run, if anything.

    Raises:
        Violation: if a run costs something else than its method says.
    """
    task = toy_task(**case.settings(participation, sizes=(_EXAMPLES,) * 5))  # 0.7 of 5 are 3
    with gradients_counted() as counted:
        state = train(case.method, task)
        in_rounds = sum(counted)
        deployed = case.method.deploy(task, state, torch.arange(task.population))
        run = _Run(case, task, state, deployed, in_rounds, sum(counted) - in_rounds)
    _require_traffic(run)
    _require_visits(run)
    _require_gradients_to_deploy(run)
    visited = state["costs"]["examples"]
    if in_rounds == visited:
        return None
    return (
        f"it says that a run visits {visited:,} examples, and `gradient`, `descend` and `value_of` were seen to compute "
        f"gradients of {in_rounds:,}; if the others have none, as those of class means, they are not to be counted"
    )


def _require_traffic(run: _Run) -> None:
    method, task, special = run.case.method, run.task, run.case.special
    spent, deploying = run.state["costs"], method.deploy_traffic(task, run.deployed.model)
    exchanged = sum(of[key] for of in (spent, deploying) for key in ("bytes_down", "bytes_up")) / task.population
    said = method.traffic(task)
    if special.exchanges_less or method.named_models:  # not all clients train the largest of the models
        fits = method.traffic_is_bound and said >= exchanged - 1
    else:
        fits = abs(said - exchanged) <= 1
    require(
        fits,
        f"traffic says {said:,} bytes per client, but a client exchanged {exchanged:,.0f}; "
        f"{_why_it_differs(method.init(task), run.state)}, so look at "
        f"{hooks_in_words(run.case, 'traffic', 'downloads', 'uploads', 'init_client', 'init_server')}.",
    )


def _require_visits(run: _Run) -> None:
    method, task, special = run.case.method, run.task, run.case.special
    whole = task.population * method.workload(task.settings, len(task.federation.clients[0]))  # one may have all
    beginning = (
        task.settings.local_epochs * _EXAMPLES * (task.population - run.cohort) if special.everyone_begins else 0
    )
    expected = round(run.cohort / task.population * whole) + beginning
    visited = run.state["costs"]["examples"]
    where = hooks_in_words(run.case, "passes_per_example", "visits", "workload", "local_update")
    require(
        visited <= expected if method.workload_is_bound else visited == expected,
        f"workload says that a run visits {expected:,} examples, but it visited {visited:,}; say how often local "
        f"training computes a gradient of an example in {where}.",
    )
    require(
        run.in_rounds <= visited if special.gradients_of_its_own else run.in_rounds == visited,
        f"the costs of a run say that it visited {visited:,} examples, but gradients of {run.in_rounds:,} were computed; say "
        f"how often local training computes a gradient of an example in {where}.",
    )


def _require_gradients_to_deploy(run: _Run) -> None:
    method, task = run.case.method, run.task
    hooks = ("deploy_workload", "server_examples", "deploy_visits", "fit_visits", "deploy", "changed", "personal_model")
    where, counted = hooks_in_words(run.case, *hooks), run.deployed.examples
    of_server = method.server_examples(_EXAMPLES * task.population, task.model.num_classes)
    # With models of their own only some clients may have to, such as those that were absent.
    if run.cohort == task.population or not method.personal:
        expected = of_server + run.cohort * method.deploy_workload(task.settings, _EXAMPLES)
        require(
            counted <= expected if method.workload_is_bound else counted == expected,
            f"deploy_workload and server_examples say that gradients of {expected:,} examples are computed in order to deploy, "
            f"but what is deployed says {counted:,} in its examples; look at {where}.",
        )
    # Servers may compute theirs in other ways.
    least = 0 if run.case.special.gradients_of_its_own else counted - of_server
    require(
        least <= run.to_deploy <= counted,
        f"what is deployed says in its examples that gradients of {counted:,} examples were computed in order to deploy it, "
        f"but {run.to_deploy:,} were: count them in deploy_visits, or in deploy_workload if the method is a wrapper; look at "
        f"{where}.",
    )


def _why_it_differs(first: Any, last: Any) -> str:
    """What a client exchanges differs between rounds: why, or what to do about it."""
    if not (changed := _changed_type(first, last)):
        return "what differs between rounds must be in traffic too"
    return f"{changed}, but state keeps its types: make it from a param, as leaf.new_zeros(...)"


def _changed_type(first: Any, last: Any, path: str = "") -> str:
    """The first entry of two states whose type differs, and how: "server.seen begins as torch.float32 and becomes
    torch.float64"; "" if there is none."""
    if isinstance(first, dict) and isinstance(last, dict):
        shared = [key for key in first if key in last]
        within = (_changed_type(first[key], last[key], f"{path}.{key}" if path else str(key)) for key in shared)
        return next(filter(None, within), "")
    both = isinstance(first, torch.Tensor) and isinstance(last, torch.Tensor)
    return f"{path} begins as {first.dtype} and becomes {last.dtype}" if both and first.dtype != last.dtype else ""
