"""What every method must do, on every engine: one function for each rule.

A method that breaks a rule gets a `Violation`, whose message is one sentence: what it did, what is expected, what to do.
Every check costs CPU-seconds for every method: checks share what is trained (see `toy.history`), and train no longer than
what they say needs.
"""

import dataclasses
import itertools
import json
import math
import tempfile
import typing
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

import algorithms
from algorithms.shared import tree
from algorithms.shared.client_states import without_clients
from bench.contract import pretended_gpu
from bench.contract.cases import Case
from bench.contract.costs import require_known_costs
from bench.contract.places import hooks_in_words
from bench.contract.rules import Check, Violation, require
from bench.contract.toy import SIZES, difference, history, normalised_task, other_values, toy_task, train
from bench.contract.traced import traced
from bench.results.artifacts import Folder
from bench.simulation.checkpoints import on_host
from bench.simulation.evaluation import evaluate
from bench.simulation.graphs import FALLING_RATE, GIVES_OTHERS, READS_ROUND, Graphs
from bench.simulation.stored import diagnostics_of, require_state
from bench.simulation.task import Task

_ON_CLIENTS = ("local_loss", "local_update", "personal_model", "trained")
_IN_ROUNDS = (
    *_ON_CLIENTS,
    "weighted_means",
    "server_step",
    "aggregate",
    "aggregate_buffers",
    "round_metrics",
    "finish_round",
    "run_round",
    "deploy",
)
_TOLERANCE = 1e-8  # of the engines, which sum in different orders
CHECKS: list[Check] = []


def _every_method(*given: dict[str, Any]) -> Callable:
    """Makes a function a check, for each of these circumstances."""

    def add(function: Callable) -> Callable:
        CHECKS.extend(Check(function, one) for one in given or ({},))
        return function

    return add


@_every_method()
def is_trained(case: Case) -> None:
    """A toy federation is trained round by round, and a model is deployed."""
    task, states = history(case.method, **case.settings())
    require(
        case.method.deploy(task, states[-1], _everyone(task)) is not None,
        "deploy returned None after the last round, where a model is expected; return a Deployed.",
    )
    for number, state in enumerate(states):
        finite = tree.all_finite(case.method.finite_check(state))
        # Only NaN differs from itself.
        odd = difference(state, state).partition(" ")[0] if finite else "numbers"
        require(
            not odd,
            f"{odd} are NaN or infinite after round {number} with the learning rate {task.settings.lr}, but finite ones are "
            f"expected; look for a logarithm, root or division of 0 in {hooks_in_words(case, *_IN_ROUNDS)}.",
        )


@_every_method()
def inputs_are_left_as_they_are(case: Case) -> None:
    """Hooks return new objects and leave their arguments as they are."""
    task = toy_task(**case.settings())
    state = case.method.init(task)  # no `history`: whoever changes what it was given has changed that before
    for _ in range(case.method.num_rounds(task.settings)):
        before, copy = state, _clone(state)
        state = case.method.step(task.in_round(before["round"]), before)
        case.method.deploy(task, state, _everyone(task))
        found = difference(before, copy)
        require(
            not found,
            f"a hook changed its input in place ({found} from what it was before the round), but a hook returns new objects; "
            f"replace +=, add_() or item assignment by new tensors in {hooks_in_words(case, *_IN_ROUNDS)}.",
        )


@_every_method({"participation": 0.6}, {"participation": 1.0})
def both_engines_agree(case: Case, participation: float) -> None:
    """Both engines give the same numbers."""
    task, (*_, looped) = history(case.method, **case.settings(participation))
    other = replace(task, engine="vectorised")
    vectorised = train(case.method, other)
    _require_agreement(case, looped, vectorised)
    scores = [
        evaluate(of, case.method.deploy(of, state, _everyone(of)))
        for of, state in ((task, looped), (other, vectorised))
    ]
    require(
        scores[0].keys() == scores[1].keys()
        and all(math.isclose(scores[0][key], scores[1][key], rel_tol=0, abs_tol=_TOLERANCE) for key in scores[0]),
        f"what is deployed scores {scores[0]} after the loop and {scores[1]} after the vectorised engine, where equal scores "
        f"are expected; look at {hooks_in_words(case, 'deploy', 'personal_model', 'changed')}.",
    )


def _require_agreement(case: Case, looped: Any, vectorised: Any) -> None:
    found = difference(looped, vectorised, _TOLERANCE)
    require(
        not found,
        f"{found} between the engines loop and vectorised, which must agree up to rounding; look at "
        f"{hooks_in_words(case, *_ON_CLIENTS)}: means over examples are batch.mean(...), since padding rows do not count, "
        "and what is drawn is a function of batch.key.",
    )


@_every_method()
def a_cohort_too_large_to_stack_gives_the_same(case: Case) -> None:
    """A cohort whose results are too large to be held at once gives the same numbers."""
    task = toy_task(**case.settings(0.6))
    found = difference(train(case.method, task), train(case.method, replace(task, largest_stack=0)), _TOLERANCE)
    require(
        not found,
        f"{found} where clients are streamed one after another, but the same is expected as from the whole cohort; "
        "values and weights of weighted_means may depend on one client alone, so look at "
        f"{hooks_in_words(case, 'weighted_means', 'server_step')}.",
    )


@_every_method(
    {"model": "simple-cnn", "shape": (3, 16, 16), "dataset": "cifar10"},
    {"model": "moon-cnn", "shape": (1, 16, 16), "dataset": "mnist"},
)
def both_engines_agree_on_images(case: Case, model: str, shape: tuple[int, int, int], dataset: str) -> None:
    """Both engines give the same numbers on augmented images and convolutions."""
    short = case.settings(rounds=2, local_epochs=1)
    task = toy_task(model=model, shape=shape, dataset=dataset, transform="fedconcat", **short)
    _require_agreement(case, *(train(case.method, replace(task, engine=engine)) for engine in ("loop", "vectorised")))


@_every_method()
def what_is_deployed_reads_no_client_states_unless_it_says_so(case: Case) -> None:
    """What is deployed is the same without the states of clients, unless deploy_reads_clients says that it reads them."""
    method = case.method
    task, states = history(method, **case.settings(0.6))
    for state in (states[1], states[-1]):  # after one round some methods have not yet anything to deploy
        left = state if method.deploy_reads_clients else without_clients(state)
        whole, less = (method.deploy(task, one, _everyone(task)) for one in (state, left))
        compared = {
            "finite_check": (method.finite_check(state), method.finite_check(left)),
            "diagnostics": (method.diagnostics(state), method.diagnostics(left)),
        }
        if whole is not None:
            compared["deploy"] = ({**whole.params, **whole.buffers}, {**less.params, **less.buffers})
        for hook, pair in compared.items():
            found = difference(*pair, path="result")
            require(
                not found,
                f"{hook} reads the states of clients ({found} without them), which runs do not keep; set deploy_reads_clients "
                f"to True, or look at {hooks_in_words(case, hook)}.",
            )


@_every_method()
def state_templates_are_as_large_as_states(case: Case) -> None:
    """State templates are as large as the states of each stage of a run."""
    short = case.settings(local_epochs=1)
    task, states = history(case.method, model="moon-cnn", shape=(1, 16, 16), dataset="mnist", **short)
    where = hooks_in_words(case, "state_templates", "init_client", "init_server")
    ends = []
    for template in case.method.state_templates(task):
        state = states[template["round"]]
        expected, said = _count(without_clients(state)), _count(without_clients(template))
        fits = said >= expected if case.special.templates_are_bounds else math.isclose(said, expected, rel_tol=0.05)
        require(
            fits,
            f"state_templates says {said:,} numbers after round {template['round']}, where the state has {expected:,}; "
            f"it must be as large, so look at {where}.",
        )
        ends.append(template["round"])
        require(
            template["round"] == state["round"], f"the state after round {ends[-1]} says {state['round']}; count it up."
        )
    rounds = case.method.num_rounds(task.settings)
    require(
        ends[-1:] == [rounds], f"state_templates ends in the rounds {ends}, but the run has {rounds}; look at {where}."
    )


@_every_method()
def a_resumed_run_goes_on_as_if_uninterrupted(case: Case) -> None:
    """A run that is saved and resumed goes on as if it was not interrupted."""
    task, states = history(case.method, **case.settings(0.6))
    with tempfile.TemporaryDirectory() as folder:
        for before, after in itertools.pairwise(states[1:]):
            require_state(case.method.step, before, "state")
            Folder(folder).save("state.pt", on_host(before))
            loaded = torch.load(f"{folder}/state.pt", weights_only=True)
            found = difference(case.method.step(task.in_round(loaded["round"]), loaded), after)
            require(
                not found,
                f"{found} between a round after the stored state and one after the state in memory; keep all that "
                f"a round needs in the state, nothing on self or in the module, so look at {hooks_in_words(case)}.",
            )


@_every_method()
def every_round_changes_what_is_deployed(case: Case) -> None:
    """Every round changes what is deployed."""
    task, states = history(case.method, **case.settings())
    deployed = [case.method.deploy(task, state, _everyone(task)) for state in states[1:]]
    seen = [_numbers_of(one) for one in deployed if one]
    where = hooks_in_words(case, "server_step", "aggregate", "local_update", "deploy")
    require(
        len(seen) >= 2,
        f"deploy gave {len(seen)} models in {len(deployed)} rounds, where 2 are needed; set more rounds.",
    )
    same = [number for number, (a, b) in enumerate(itertools.pairwise(seen), 2) if torch.equal(a, b)]
    require(
        not same,
        f"the model after round {same[:1]} is that of the round before, but each must change it; look at {where}.",
    )


@_every_method()
def when_there_is_a_model_is_known_before(case: Case) -> None:
    """After which rounds there is a model is known before the run."""
    task, states = history(case.method, **case.settings())
    config = SimpleNamespace(cohort_size=len(task.sample_cohort(0).ids))
    said = [case.method.has_model(config, state["round"]) for state in states[1:]]
    there = [case.method.deploy(task, state, _everyone(task)) is not None for state in states[1:]]
    require(
        said == there,
        f"has_model says {said} for the rounds of a run, but deploy gives a model {there}; both must be the same, so look at "
        f"{hooks_in_words(case, 'has_model', 'deploy')}.",
    )


@_every_method()
def clients_deploy_own_models_exactly_if_personal(case: Case) -> None:
    """Clients deploy one model each exactly if the method is personal."""
    method = case.method
    task, states = history(method, **case.settings())
    deployed = method.deploy(task, states[-1], _everyone(task))
    where = hooks_in_words(case, "deploy", "personal_model", "changed", "deployed_model")
    require(
        deployed.per_client == method.personal,
        f"deploy says per_client={deployed.per_client}, but the method says personal={method.personal}; set the attribute "
        f"personal, or look at {where}.",
    )
    lead = (task.population,) if method.personal else ()
    shapes = {key: leaf.shape for key, leaf in deployed.model.init(torch.Generator()).items()}
    for key, leaf in deployed.params.items():
        wanted = (*lead, *shapes.get(key, ()))
        require(
            key in shapes and leaf.shape == wanted,
            f"deployed params {key} have shape {list(leaf.shape)}, but the model takes {list(wanted)}; look at {where}.",
        )


@_every_method({"participation": 0.7}, {"participation": 1.0})
def what_a_run_costs_is_known_before(case: Case, participation: float) -> str | None:
    """What a run costs is known before it is trained."""
    return require_known_costs(case, participation)


@_every_method()
def another_seed_gives_another_model(case: Case) -> None:
    """Another seed gives another model."""
    a, b = (_trained_numbers(case, case.method, local_epochs=1, seed=seed) for seed in (0, 1))
    require(
        not torch.equal(a, b),
        f"the seeds 0 and 1 gave the same model; draw by task.generator_for or batch.key in {hooks_in_words(case)}.",
    )


@_every_method()
def nothing_is_trained_on_test_images(case: Case) -> None:
    """What is trained and deployed does not depend on the test images.

    Metrics may: nothing is trained on them.
    """
    task, states = history(case.method, **case.settings())
    seen = task.federation
    other = replace(
        task, federation=replace(seen, test_images=255 - seen.test_images, test_labels=seen.test_labels.roll(1))
    )
    ends = [
        state | {"metrics": {}, "deployed": _numbers_of(case.method.deploy(on, state, _everyone(on)))}
        for on, state in ((other, train(case.method, other)), (task, states[-1]))
    ]
    found = difference(*ends)
    require(
        not found,
        f"{found} with other test images, but no method may see them, as its accuracy would be too high; look for test_images "
        f"and test_labels in {hooks_in_words(case, *_IN_ROUNDS)}.",
    )


@_every_method()
def every_option_has_an_effect(case: Case) -> str | None:
    """Every option, changed alone, changes what is deployed."""
    kinds = typing.get_type_hints(type(case.method))
    default = _trained_numbers(case, case.method, local_epochs=1)
    idle, untried = {}, {}
    for name in (option.name for option in dataclasses.fields(case.method) if option.name not in case.no_effect):
        now, tried, why = getattr(case.method, name), [], f"its type is {kinds[name]}"
        for value in other_values(kinds[name], now):
            try:
                changed = _trained_numbers(case, replace(case.method, **{name: value}), local_epochs=1)
            except ValueError as error:  # one that the method refuses
                why = why if tried else str(error)
                continue
            tried.append(value)
            if not torch.equal(changed, default):
                break
        else:
            if tried:
                idle[name] = f"{name} from {_shown(now)} to {' or '.join(map(_shown, tried))}"
            else:
                untried[name] = why
    if case.reports_idle:
        return f"not seen on a toy task: {', '.join([*idle, *untried])}" if idle or untried else None
    require(
        not untried,
        f"the contract finds no second value of {' and '.join(f'{name} ({why})' for name, why in untried.items())} to try; "
        'give a text its values by Literal["full", "fast"] as its type, or name it by --no-effect '
        f"{','.join(untried)} and test it yourself.",
    )
    cohort = len(toy_task(**case.settings()).sample_cohort(0).ids)
    fewer = ", draw cohorts from more clients than they have, --set participation=0.6" if cohort == len(SIZES) else ""
    named = ",".join(idle)
    require(
        not idle,
        f"changing {', and '.join(idle.values())} changes nothing that is deployed on toy tasks, whose cohorts have {cohort} "
        f"of {len(SIZES)} clients, but an option must have an effect; read "
        f"{' and '.join(f'self.{name}' for name in idle)} in {hooks_in_words(case)}, start from a value that acts there, "
        f"--set {','.join(f'{name}=VALUE' for name in idle)}{fewer}, or name it by --no-effect {named} and test it yourself.",
    )
    return None


@_every_method()
def a_client_with_one_example_breaks_nothing(case: Case) -> None:
    """A client with one example is trained without breaking anything."""
    task = toy_task(**case.settings(sizes=(case.special.smallest_client, 4, 20, 8, 11)))
    require(
        tree.all_finite(case.method.deploy(task, train(case.method, task), _everyone(task)).params),
        "params that are deployed are not finite where a client has one example; a variance or a division by a count may be of "
        f"one example, so look at {hooks_in_words(case)}.",
    )


@_every_method()
def batch_norm_is_trained_and_its_statistics_move(case: Case) -> None:
    """A model with batch normalisation is trained on the engine loop, and its statistics move.

    Its buffers change in place, which not every way to a gradient allows.
    """
    method = case.method
    task = normalised_task(**case.settings(rounds=2, local_epochs=1))
    state = train(method, task)
    deployed, start = method.deploy(task, state, _everyone(task)), method.deployed_model(task).init_buffers()
    where = hooks_in_words(case, "local_update", "aggregate_buffers", "deploy")
    require(
        tree.all_finite([method.finite_check(state), deployed.params, deployed.buffers])
        and all(map(math.isfinite, evaluate(task, deployed).values())),
        f"numbers of a model with batch normalisation are not finite after 2 rounds; look at {where}.",
    )
    still = [key for key, leaf in deployed.buffers.items() if not bool((leaf != start.get(key, 0)).any())]
    require(
        deployed.buffers.keys() >= start.keys() and any("running_mean" in key for key in deployed.buffers),
        f"the deployed model lacks running statistics; deploy those that the state has under buffers, so look at {where}.",
    )
    require(not still, f"the running statistics {', '.join(still)} do not move in training; look at {where}.")


@_every_method()
def divergence_ends_in_numbers_and_no_error(case: Case) -> str | None:
    """Training that diverges ends in numbers that are not finite, and not in an error.

    A method whose steps are bounded, as those of signs are, has finite ones at every learning rate.
    """
    method = dataclasses.replace(case.method, **dict.fromkeys(case.special.rates, 1e30))
    task = toy_task(**case.settings() | {"lr": 1e30})
    state, left = method.init(task), method.num_rounds(task.settings)
    while tree.all_finite(method.finite_check(state)) and left:
        state, left = method.step(task.in_round(state["round"]), state), left - 1
    is_bounded = tree.all_finite(method.finite_check(state))
    require(
        not is_bounded or tree.all_finite(_tensors(state)),
        "finite_check is finite after training with a learning rate of 1e30, but the state is not, so that a run that diverged "
        f"goes unnoticed; look at {hooks_in_words(case, 'finite_check')}.",
    )
    require(
        bool(difference(state, history(case.method, **case.settings())[1][-1])),
        "training with a learning rate of 1e30 gives the same numbers as with another one; use view.settings.lr in local "
        "training (an option that is a learning rate itself has a name that ends in _lr), so look at "
        f"{hooks_in_words(case, 'local_update', 'trained')}.",
    )
    found = diagnostics_of(method.diagnostics, method.diagnostics(state))
    try:
        json.dumps(found, allow_nan=False)  # of its record
    except (TypeError, ValueError) as error:
        where = hooks_in_words(case, "diagnostics")
        raise Violation(f"diagnostics are no JSON after training that diverged ({error}); look at {where}.") from error
    why = "its numbers stay finite at a learning rate of 1e30, so only its accuracy shows that one is too large"
    return why if is_bounded else None


@_every_method()
def local_training_follows_its_settings(case: Case) -> str | None:
    """Local training uses the settings momentum, weight_decay and max_gradient_norm, or `check` says which it leaves out.

    A table whose methods differ in them compares more than the methods.
    """
    task, (*_, usual) = history(case.method, **case.settings(local_epochs=1))
    others = {
        "momentum": 0.0 if task.settings.momentum else 0.5,
        "weight_decay": 10 * task.settings.weight_decay or 0.01,
        "max_gradient_norm": 1e-6,
    }
    idle = [
        name
        for name, other in others.items()
        if not difference(usual, train(case.method, replace(task, settings=replace(task.settings, **{name: other}))))
    ]
    if not idle:
        return None
    return (
        f"it leaves out {', '.join(idle)}, which descend uses; in a loop of your own read view.settings.momentum and "
        "view.settings.weight_decay and write clipped(gradient(...), view.settings.max_gradient_norm), or say in the docstring "
        "what it has instead"
    )


@_every_method({"engine": "loop"}, {"engine": "vectorised"})
def hooks_compute_where_their_tensors_are(case: Case, engine: str) -> str | None:
    """Hooks make tensors on the device of their arguments, as a GPU needs it."""
    try:
        with pretended_gpu.session():
            torch.ones(1, device=pretended_gpu.NAME)
    except (ImportError, AttributeError, RuntimeError):
        return "not tried, because this release of torch cannot pretend to have a GPU"
    with pretended_gpu.session():
        task = toy_task(**case.settings(device=pretended_gpu.NAME, dtype=torch.float32, engine=engine, local_epochs=1))
        case.method.deploy(task, train(case.method, task), _everyone(task))
    return None


@_every_method()
def captured_blocks_give_the_same(case: Case) -> str | None:
    """What a GPU replays as a graph, without Python, gives the same numbers."""
    small = {"sizes": (12,) * 3, "local_epochs": None, "local_steps": 2, "rounds": 4, "dtype": torch.float32}
    task, graphs = toy_task(**{**small, **case.settings(), "engine": "vectorised"}), Graphs(traced, least_left=0)
    at_once = property(lambda task: task.engine == "vectorised")  # clusters, too, as on a GPU
    with mock.patch.object(Graphs, "broken", ""), mock.patch.object(Task, "trains_models_at_once", at_once):
        found = difference(train(case.method, replace(task, graphs=graphs)), train(case.method, task))
    require(
        not found and GIVES_OTHERS not in graphs.not_captured.values(),
        f"{found or 'numbers differ'} where the steps of clients are replayed as a GPU replays them, without Python; keep what "
        f"changes from round to round in the state, nothing on self or in the module, so look at "
        f"{hooks_in_words(case, *_ON_CLIENTS)}.",
    )
    if FALLING_RATE in graphs.not_captured.values():
        return "not tried, because blocks are not captured where the learning rate falls from round to round"
    if not graphs.not_captured:
        return None if graphs.num_proven else "not tried, because no block of clients comes again on the toy tasks"
    reads = READS_ROUND in graphs.not_captured.values()
    why = "reads the round" if reads else "cannot be captured, as if it makes a number of a tensor (int(), .item(), if)"
    return f"not replayed on a GPU, and so slower there, because {hooks_in_words(case, *_ON_CLIENTS)} {why}"


@_every_method()
def description_is_one_sentence(case: Case) -> None:
    """The first line of its file describes it in one sentence of fewer than 120 letters."""
    text = algorithms.describe(case.name)
    require(
        text.endswith(".") and len(text) < 120,
        f"the description is {text!r}, but it must be a sentence of fewer than 120 letters with a full stop; write it into the "
        f"first line of the docstring of {algorithms.REGISTRY[case.name].place}.",
    )


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _everyone(task) -> torch.Tensor:
    return torch.arange(task.population)


def _clone(state):
    if isinstance(state, dict):
        return {key: _clone(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state


def _tensors(state) -> list[torch.Tensor]:
    """The tensors of a state, without its plain numbers."""
    if isinstance(state, dict):
        return [leaf for part in state.values() for leaf in _tensors(part)]
    return [state] if isinstance(state, torch.Tensor) else []


def _count(state) -> int:
    """How many numbers a state has."""
    return sum(leaf.numel() for leaf in _tensors(state))


def _trained_numbers(case: Case, method, **own) -> torch.Tensor:
    task, states = history(method, **case.settings(**own))
    return _numbers_of(method.deploy(task, states[-1], _everyone(task)))


def _numbers_of(deployed) -> torch.Tensor:
    """All params of what is deployed, [n]; in some methods the classifier alone changes, in others everything else."""
    return torch.cat([leaf.flatten() for leaf in deployed.params.values()])
