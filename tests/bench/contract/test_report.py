"""The contract of a lab's method: what is right passes, and what is wrong is told in one sentence."""

import dataclasses

import pytest
import torch

import algorithms
from algorithms.fedlpa import FedLPA
from bench.cli import check as check_command
from bench.contract.cases import Case, Special, said_by
from bench.contract.checks import (
    CHECKS,
    a_resumed_run_goes_on_as_if_uninterrupted,
    both_engines_agree,
    captured_blocks_give_the_same,
    divergence_ends_in_numbers_and_no_error,
    every_option_has_an_effect,
    hooks_compute_where_their_tensors_are,
    is_trained,
    local_training_follows_its_settings,
    nothing_is_trained_on_test_images,
    what_a_run_costs_is_known_before,
)
from bench.contract.report import outcome_of, outcomes
from bench.contract.rules import Check, Violation
from bench.contract.toy import history, toy_task, train
from bench.errors import HookError
from tests.support import method_files
from tests.support.processes import call_bench

RIGHT = '''"""FedMine: clients dig near the global model."""

from dataclasses import dataclass

from algorithms import RoundBased, registered, task_loss, tree


@registered("fedmine")
@dataclass(frozen=True)
class FedMine(RoundBased):
    strength: float = 1.0

    def local_loss(self, params, batch, view):
        drift = tree.squared_distance(params, view.params)
        return task_loss(params, batch, view) + self.strength * drift
'''
INITIAL = """
    def init_server(self, task, params):
        return {}
"""
STEP = """
    def server_step(self, task, params, server, update, cohort):
        for name in params:
            params[name] += self.strength * update["delta"][name]
        return params, server
"""
PLACE = "mylab/algorithms/fedmine.py"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Writes the file of the method into a lab's folder, and uses that."""

    def make(text: str = RIGHT) -> Case:
        method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
        method = algorithms.make("fedmine")
        return Case("fedmine", method, special=said_by(method))

    return make


def found(case: Case, function) -> str:
    """What the first check of a function says."""
    return str(outcome_of(next(check for check in CHECKS if check.function is function), case))


@pytest.mark.slow
def test_a_method_that_is_right_passes_every_check(lab):
    lab()
    code, text = call_bench("check", "fedmine")
    _, *lines, last = text.splitlines()  # which folder is used
    assert [line for line in lines if not line.startswith("ok: ")] == [] and len(lines) == len(CHECKS)
    assert last.startswith(f"fedmine: {len(CHECKS)} checks ok, 0 failed, in ") and code == 0


def test_an_option_without_an_effect_is_named_with_what_to_do(lab):
    case = lab(RIGHT.replace("    strength: float = 1.0\n", "    strength: float = 1.0\n    depth: int = 3\n"))
    assert found(case, every_option_has_an_effect) == (
        "FAILED: Every option, changed alone, changes what is deployed: changing depth from 3 to 4 or 2 or 6 or 1 or 0 "
        "changes nothing that is deployed on toy tasks, whose cohorts have 5 of 5 clients, but an option must have an effect; "
        f"read self.depth in local_loss in {PLACE}, start from a value that acts there, --set depth=VALUE, draw cohorts from "
        "more clients than they have, --set participation=0.6, or name it by --no-effect depth and test it yourself."
    )
    named = Case("fedmine", case.method, no_effect=["depth"])
    assert found(named, every_option_has_an_effect) == "ok: Every option, changed alone, changes what is deployed."
    reported = Case("fedmine", case.method, reports_idle=True)
    assert found(reported, every_option_has_an_effect).endswith("; not seen on a toy task: depth.")


SAMPLED = """
    first: bool = True
    depth: int = 3

    def sample(self, task, state):
        plain = task.sample_cohort(state["round"])
        return task.cohort(plain.ids.argsort()) if self.first else plain
"""


def test_an_option_of_sampling_acts_where_cohorts_are_smaller_as_the_message_says(lab):
    case = lab(RIGHT + SAMPLED)
    sentence = found(case, every_option_has_an_effect)
    assert ": changing first from True to False, and depth from 3 to 4 or 2 or 6 or 1 or 0 changes nothing" in sentence
    assert (
        "cohorts have 5 of 5 clients" in sentence and "than they have, --set participation=0.6, or name it" in sentence
    )
    fewer = dataclasses.replace(case, chosen={"participation": 0.6})
    sentence = found(fewer, every_option_has_an_effect)
    assert ": changing depth from 3 " in sentence and "cohorts have 3 of 5 clients" in sentence
    assert "participation" not in sentence


TRIMMED = '''"""FedMine: a mean of clients without the largest and the smallest updates."""

from dataclasses import dataclass

from algorithms import RoundBased, registered, tree


@registered("fedmine")
@dataclass(frozen=True)
class FedMine(RoundBased):
    trim: float = 0.1

    def __post_init__(self):
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"trim must be at least 0 and below 0.5, but got {self.trim}.")

    def aggregate(self, task, params, server, updates, cohort):
        def trimmed(rows):
            cut = int(self.trim * len(rows))
            return rows.sort(0).values[cut : len(rows) - cut].mean(0)

        return tree.add(params, tree.map(trimmed, updates["delta"])), server
'''


@pytest.mark.parametrize("trim", [0.1, 0.2, 0.3, 0.4])
def test_a_share_of_clients_acts_on_a_toy_cohort_though_not_nearby(lab, trim):
    lab(TRIMMED)
    method = algorithms.make("fedmine", trim=trim)
    case = Case("fedmine", method, special=said_by(method))
    assert found(case, every_option_has_an_effect) == "ok: Every option, changed alone, changes what is deployed."


def test_an_option_that_acts_at_small_values_only_passes(lab):
    clipped = RIGHT.replace("strength: float = 1.0", "radius: float = 50.0")
    case = lab(clipped.replace("self.strength * drift", "drift.clamp(max=self.radius)"))
    assert found(case, every_option_has_an_effect).startswith("ok: ")


def test_an_option_without_a_second_value_is_named(lab):
    case = lab(RIGHT.replace("    strength: float = 1.0\n", '    strength: float = 1.0\n    tool: str = "spade"\n'))
    sentence = found(case, every_option_has_an_effect)
    assert "finds no second value of tool (its type is <class 'str'>)" in sentence
    assert 'by Literal["full", "fast"] as its type, or name it by --no-effect tool' in sentence


def test_a_number_read_from_a_tensor_is_told_with_its_line_and_the_rule(lab):
    case = lab(RIGHT.replace("self.strength * drift", "drift / view.num_steps.item()"))
    assert found(case, is_trained).startswith("ok: ")  # on the engine loop
    sentence = found(case, both_engines_agree)
    line = RIGHT.splitlines().index("        drift = tree.squared_distance(params, view.params)") + 2
    assert f"{PLACE}, line {line}, in local_loss (return task_loss(" in sentence
    assert "the vectorised engine refuses this line (RuntimeError: vmap: " in sentence
    assert (
        "numbers of a client are tensors: write formulas" in sentence and "--engine loop trains the method" in sentence
    )


def test_a_draw_without_a_key_is_told_how_clients_draw(lab):
    noisy = RIGHT.replace("drift = ", "import torch; drift = torch.randn_like(view.num_examples.double()) + ")
    sentence = found(lab(noisy), both_engines_agree)
    assert f"{PLACE}, line 14, in local_loss (import torch; drift = torch.randn_like(" in sentence
    assert sentence.endswith("the key is batch.key in a loss, and plan[0].key in local_update.")
    assert "write normal_from_keys(keys_from(key, rows), columns)" in sentence and "--engine" not in sentence
    keyed = "        from bench.seeding import keys_from, normal_from_keys\n"
    keyed += "        noise = normal_from_keys(keys_from(plan[0].key, 1), 1).sum() * 1e-3\n"
    keyed += (
        "        update = {'delta': tree.scale(view.params, noise)}\n        return LocalResult(update, view.client)\n"
    )
    text = RIGHT.replace("RoundBased", "LocalResult, RoundBased", 1)
    text = text[: text.index("    def local_loss")] + f"    def local_update(self, data, plan, view):\n{keyed}"
    assert found(lab(text), both_engines_agree).startswith("ok: ")


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            "local_loss(self, params, batch, view):\n        return view.server['momentum']",
            "KeyError: 'momentum'; view.server has nothing: of the server state, clients get what the class names, as "
            "broadcast = ('momentum',).",
        ),
        (
            "local_loss(self, params, batch, view):\n        return view.client['drfit']",
            "KeyError: 'drfit'; view.client has drift, age.",
        ),
        (
            "server_step(self, task, params, server, update, cohort):\n        return params, update['momentum']",
            "KeyError: 'momentum'; update has delta.",
        ),
        (
            "server_step(self, task, params, server, update, cohort):\n        return update['delta'], server['momentum']",
            "KeyError: 'momentum'; server has nothing.",
        ),
        (
            "local_loss(self, params, batch, view):\n        self.count = 1",
            "FrozenInstanceError: cannot assign to field 'count'; methods keep nothing between rounds: return it as state, "
            "from init_server or init_client on.",
        ),
    ],
)
def test_an_error_that_many_make_is_told_with_what_is_there_or_what_to_do(lab, hook, sentence):
    text = method_files.RUNNABLE + "\n    def init_client(self, task, params):\n"
    text += "        return {'drift': params, 'age': params}\n"
    (outcome,) = outcomes(lab(text + f"\n    def {hook}\n"))
    assert outcome.sentence.startswith(f"{PLACE}, line 17, in {hook.split('(')[0]} (")
    assert outcome.sentence.endswith(sentence)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            "for step in range(view.num_steps): pass",
            "numbers of a client, such as view.num_steps, are tensors: write for index in plan, a step for each batch.",
        ),
        (
            "task_loss(view.params, data.take(plan[0]), view).backward()",
            "take gradients by gradient(loss, params, batch, view), on both engines.",
        ),
    ],
)
def test_a_loop_that_is_written_as_in_plain_torch_is_told_how_it_is_written_here(lab, line, sentence):
    text = OWN_LOOP.replace("        params = view.params\n", f"        params = view.params\n        {line}\n")
    said = found(lab(text), is_trained)
    assert f"{PLACE}, line 15, in local_update ({line}): " in said and said.endswith(sentence)


def test_passes_that_costs_leave_out_are_counted(lab):
    """3 rounds of 2 epochs of 3 or 5 of 5 clients with 20 examples; local training is one pass longer than it says."""
    twice = "descend(self.local_loss, view.params, data, plan + plan[:4], view).params"
    text = method_files.RUNNABLE.replace("RoundBased", "LocalResult, RoundBased, descend, tree", 1)
    text += f"\n    {TRAINED}LocalResult({{'delta': tree.subtract({twice}, view.params)}}, {{}})\n"
    case = lab(text)
    assert found(case, what_a_run_costs_is_known_before) == (
        "FAILED: What a run costs is known before it is trained (participation 0.7): the costs of a run say that it visited "
        "360 examples, but gradients of 540 were computed; say how often local training computes a gradient of an example in "
        f"local_update in {PLACE}."
    )


def test_examples_without_a_gradient_that_count_as_visited_are_told(lab):
    """3 rounds of 2 epochs of 3 of 5 clients with 20 examples, and of a third pass that computes no gradient."""
    text = method_files.RUNNABLE + "\n    def visits(self, settings, num_examples):\n"
    assert found(lab(text + "        return 3 * num_examples\n"), what_a_run_costs_is_known_before) == (
        "ok: What a run costs is known before it is trained (participation 0.7); it says that a run visits 540 examples, and "
        "`gradient`, `descend` and `value_of` were seen to compute gradients of 360; if the others have none, as those of "
        "class means, they are not to be counted."
    )


PERSONAL = """
    personal = True

    def personal_model(self, data, plan, view):
        trained = descend(self.local_loss, view.params, data, plan, view).params
        return {"params": trained, "buffers": view.buffers}
"""
COUNTED = """
    def deploy_visits(self, settings, num_examples):
        return settings.num_visited(num_examples)
"""


def test_gradients_in_order_to_deploy_are_counted(lab):
    """5 clients with 20 examples train for 2 epochs before they deploy; and FedLPA, which takes gradients in its own way."""
    text = RIGHT.replace("RoundBased", "RoundBased, descend", 1) + PERSONAL
    assert found(lab(text), what_a_run_costs_is_known_before).endswith(
        "what is deployed says in its examples that gradients of 0 examples were computed in order to deploy it, but 200 were: "
        f"count them in deploy_visits, or in deploy_workload if the method is a wrapper; look at personal_model in {PLACE}."
    )
    assert found(lab(text + COUNTED), what_a_run_costs_is_known_before).startswith("ok: ")


def test_a_wrong_number_of_gradients_in_order_to_deploy_is_told(monkeypatch):
    case = Case("fedlpa", algorithms.make("fedlpa"), special=Special())
    assert found(case, what_a_run_costs_is_known_before).startswith("ok: ")
    monkeypatch.setattr(FedLPA, "deploy_workload", lambda self, settings, num_examples: 7 * num_examples + 3)
    assert "gradients of 429 examples were computed in order to deploy it, but 60 were:" in found(
        case, what_a_run_costs_is_known_before
    )


def test_a_hook_that_changes_its_input_is_told_and_what_rests_on_it_is_left_out(lab):
    lab(RIGHT + INITIAL + STEP)
    code, text = call_bench("check", "fedmine")
    _, first, second, last = text.splitlines()
    assert first.startswith("ok: ")
    assert second.startswith(
        "FAILED: Hooks return new objects and leave their arguments as they are: a hook changed its input"
    )
    assert "(params." in second and f"local_loss and server_step in {PLACE}." in second
    assert f"1 checks ok, 1 failed, {len(CHECKS) - 2} not tried, which rest on it, in " in last and code == 1


def test_an_error_in_a_hook_is_told_with_its_line_and_ends_the_checks(lab):
    (outcome,) = outcomes(lab(RIGHT.replace("view.params)", "view.parms)")))
    assert f"{PLACE}, line 14, in local_loss (drift = " in outcome.sentence
    assert outcome.sentence.endswith("AttributeError: 'ClientView' object has no attribute 'parms'; correct this line.")


STEPPED = "def server_step(self, task, params, server, update, cohort):\n        return "
TRAINED = "def local_update(self, data, plan, view):\n        return "
FIT = "but the names, shapes and types of the round's params are expected; "
RESULT = (
    'is expected; write return LocalResult(update, client): what it sends, as {"delta": delta}, and its new state, '
    "or view.client."
)


@pytest.mark.parametrize(
    ("hook", "sentence"),
    [
        (
            f"{STEPPED}server, params",
            "returned the pair (server, params), but (params, server) is expected; write return params, server.",
        ),
        (
            STEPPED + "{'linear1.weight': params['linear1.weight']}, server",
            f"returned params without linear1.bias, linear2.weight, linear2.bias, ..., {FIT}return all of them.",
        ),
        (
            STEPPED + "{**params, 'own': params['linear1.bias']}, server",
            f"returned params with own beside them, {FIT}leave this out.",
        ),
        (
            STEPPED + "{name: leaf[:, None] for name, leaf in params.items()}, server",
            f"returned params whose linear1.weight is torch.float64 [64, 1, 36], {FIT}return it as torch.float64 [64, 36].",
        ),
        (
            STEPPED + "{name: leaf.float() for name, leaf in params.items()}, server",
            f"returned params whose linear1.weight is torch.float32 [64, 36], {FIT}return it as torch.float64 [64, 36].",
        ),
        (
            TRAINED + "LocalResult({'delta': {name: leaf * 1j for name, leaf in view.params.items()}}, {})",
            f"returned a delta whose linear1.weight is torch.complex128 [64, 36], {FIT}return it as torch.float64 [64, 36].",
        ),
        (
            "def weighted_means(self, updates, cohort):\n        averages = super().weighted_means(updates, cohort)\n"
            "        first = dict([*averages['delta'].values.items()][:1])\n"
            "        return {'delta': averages['delta']._replace(values=first)}",
            f"returned a delta without linear1.bias, linear2.weight, linear2.bias, ..., {FIT}return all of them.",
        ),
        (
            "def weighted_means(self, updates, cohort):\n        return {'delta': updates['delta']}",
            "returned a dict as delta, but an Average is expected for each name; write return "
            '{"delta": Average(updates["delta"], cohort.weights)}.',
        ),
        (
            "def weighted_means(self, updates, cohort):\n        return [updates['delta']]",
            "returned a list as its result, but an Average is expected for each name; write return "
            '{"delta": Average(updates["delta"], cohort.weights)}.',
        ),
        (
            TRAINED + "LocalResult({'delta': {}}, {})",
            f"returned a delta without linear1.weight, linear1.bias, linear2.weight, ..., {FIT}return all of them.",
        ),
        (TRAINED + "{'delta': view.params}, {}", f"returned a tuple, but a LocalResult {RESULT}"),
        (
            TRAINED + "LocalResult(view.num_steps, {})",
            f"returned a tensor of shape [] as the update, but a dict {RESULT}",
        ),
        (
            TRAINED + "LocalResult({'work': view.num_steps}, {})",
            'returned an update with work, but "delta" is expected; send trained params - view.params as "delta", or override '
            "weighted_means and server_step, which read it.",
        ),
        (
            TRAINED
            + "LocalResult({'delta': view.params}, {'gate': view.num_steps})\n\n"
            + "    def init_client(self, task, params):\n        return {'gate': params['linear1.bias'].sum(), 'seen': params}",
            "returned the new state of a client without seen.classifier.bias, seen.classifier.weight, seen.linear1.bias, ..., "
            "but init_client returns gate, seen.classifier.bias, seen.classifier.weight, ...; return the same entries from "
            "both, such as {**view.client, ...}.",
        ),
        (
            TRAINED + "LocalResult({'delta': view.params}, {'gate': view.num_steps})",
            "returned the new state of a client with gate, but init_client returns nothing; return the same entries from both, "
            "such as {**view.client, ...}.",
        ),
        (
            "def init_server(self, task, params):\n        return {'drift': params}\n\n    broadcast = ('drfit',)",
            "returned drift, but clients get drfit of the server state, as broadcast or seeded says; return it, or correct the "
            "name.",
        ),
        (
            "def personal_model(self, data, plan, view):\n        return {'own': view.params}\n\n    personal = True",
            'returned own, but "params" and "buffers" are expected; write return {"params": params, "buffers": view.buffers}.',
        ),
    ],
)
def test_what_a_hook_returned_wrong_is_told_with_its_line_and_what_is_expected(lab, hook, sentence):
    text = method_files.RUNNABLE.replace("RoundBased", "LocalResult, RoundBased", 1) + f"\n    {hook}\n"
    (outcome,) = outcomes(lab(text))
    name = hook.split("(")[0].removeprefix("def ")
    assert outcome.sentence == f"{name} in {PLACE}, line 13, {sentence}"


def test_a_personal_method_without_its_hook_is_told_which_one(lab):
    (outcome,) = outcomes(lab(method_files.RUNNABLE + "\n    personal = True\n"))
    assert outcome.sentence == (
        "FedMine says that it is personal, but has no hook personal_model; write one that returns "
        '{"params": params, "buffers": view.buffers}, or override deploy.'
    )


def test_numbers_that_are_nan_from_the_start_are_no_change_in_place(lab):
    assert found(lab(RIGHT.replace("self.strength * drift", "drift.sqrt()")), is_trained).endswith(
        "numbers are NaN or infinite after round 1 with the learning rate 0.05, but finite ones are expected; look for a "
        f"logarithm, root or division of 0 in local_loss in {PLACE}."
    )


ONE_HOT = "batch.mean((batch.y[:, None] == torch.arange(3{on})).to(params['linear1.weight'].dtype).sum(1)) * drift"


def test_a_tensor_of_another_device_is_found_without_a_gpu(lab):
    text = RIGHT.replace("from algorithms", "import torch\nfrom algorithms", 1)
    case = lab(text.replace("self.strength * drift", ONE_HOT.format(on="")))
    sentence = found(case, hooks_compute_where_their_tensors_are)
    assert f"{PLACE}, line 16, in local_loss (return " in sentence
    assert sentence.endswith(
        "make a tensor with the device of those that it meets, as leaf.new_zeros(...), mask.to(leaf.dtype) or "
        "torch.arange(count, device=batch.y.device)."
    )
    case = lab(text.replace("self.strength * drift", ONE_HOT.format(on=", device=batch.y.device")))
    assert found(case, hooks_compute_where_their_tensors_are).startswith("ok: ")


def test_a_product_of_tensors_of_two_types_is_told_what_to_do(lab):
    text = RIGHT.replace("from algorithms", "import torch\nfrom algorithms", 1)
    sentence = found(
        lab(text.replace("self.strength * drift", "(torch.ones(1, 6) @ batch.x.flatten(1)).sum()")), is_trained
    )
    assert "make a tensor with the type of those that it meets" in sentence


def test_state_that_changes_its_type_is_named_where_traffic_differs(lab):
    text = RIGHT.replace("from algorithms", "import torch\nfrom algorithms", 1) + (
        "\n    broadcast = ('seen',)\n\n    def init_server(self, task, params):\n        return {'seen': torch.zeros(())}\n\n"
        "    def server_step(self, task, params, server, update, cohort):\n"
        "        return tree.add(params, update['delta']), {'seen': server['seen'] + tree.norm(update['delta'])}\n"
    )
    assert (
        "server.seen begins as torch.float32 and becomes torch.float64, but state keeps its types: make it from a param"
        in found(lab(text), what_a_run_costs_is_known_before)
    )


COUNTS_ON_MODULE = """
    def init_server(self, task, params):
        seen[0] = 0  # so that each run begins alike
        return {}

    def server_step(self, task, params, server, update, cohort):
        seen[0] += 1
        return tree.add(params, update["delta"]), server
"""


def test_what_changes_outside_the_state_is_found_where_a_gpu_replays_steps_without_python(lab):
    text = (
        RIGHT.replace("@registered", "seen = [0]\n\n\n@registered", 1).replace("self.strength", "seen[0]")
        + COUNTS_ON_MODULE
    )
    sentence = found(lab(text), captured_blocks_give_the_same)
    assert sentence.startswith("FAILED: What a GPU replays as a graph, without Python, gives the same numbers: ")
    assert "nothing on self or in the module, so look at local_loss in mylab/algorithms/fedmine.py" in sentence


ZEROS_TWICE = """
    broadcast = ("first", "second")

    def init_server(self, task, params):
        zeros = tree.zeros_like(params)
        return {"first": zeros, "second": zeros}

    def server_step(self, task, params, server, update, cohort):
        moved = tree.add(params, update["delta"])
        return moved, {"first": tree.add(server["first"], update["delta"]), "second": server["second"]}
"""


def test_one_tensor_in_two_places_of_the_state_is_no_state_outside_it(lab):
    """Replays of a graph once took them for a single input."""
    loss = "task_loss(params, batch, view)"
    pull = "tree.squared_distance(view.server['first'], view.server['second']) * tree.squared_distance(params, view.params)"
    sentence = found(lab(RIGHT.replace(loss, f"{loss} + {pull}") + ZEROS_TWICE), captured_blocks_give_the_same)
    assert sentence == "ok: What a GPU replays as a graph, without Python, gives the same numbers."


NAN_STATE = """
    def init_client(self, task, params):
        return {"gate": torch.zeros(())}

    def local_update(self, data, plan, view):
        update = super().local_update(data, plan, view).update
        return LocalResult(update, {"gate": view.client["gate"] * float("nan")})
"""


def test_a_nan_in_the_state_of_a_client_is_called_one(lab):
    text = method_files.RUNNABLE.replace("from algorithms", "import torch\nfrom algorithms", 1).replace(
        "RoundBased", "LocalResult, RoundBased", 1
    )
    sentence = found(lab(text + NAN_STATE), is_trained)
    assert ".gate are NaN or infinite after round 1 with the learning rate 0.05" in sentence


def test_a_hook_that_waits_for_a_number_is_said_to_be_slower_on_a_gpu(lab):
    text = RIGHT.replace(
        "self.strength * drift", "float(view.settings.lr) * drift if view.params['linear1.bias'].sum() else 0"
    )
    sentence = found(lab(text), captured_blocks_give_the_same)
    assert sentence.startswith(
        "ok: What a GPU replays as a graph, without Python, gives the same numbers; not replayed"
    ), sentence


def test_a_delta_of_half_precision_is_added_to_params(lab):
    hook = f"{TRAINED}LocalResult({{'delta': {{name: 0.1 * leaf.half() for name, leaf in view.params.items()}}}}, {{}})"
    lab(method_files.RUNNABLE.replace("RoundBased", "LocalResult, RoundBased", 1) + f"\n    {hook}\n")
    _, (first, *_, last) = history(algorithms.make("fedmine"))
    assert last["params"]["linear1.weight"].dtype == first["params"]["linear1.weight"].dtype == torch.float64


def test_a_mean_over_padding_rows_is_looked_for_on_clients(lab):
    padded = RIGHT.replace("task_loss(params, batch, view)", "view.model(params, batch.x).square().mean()")
    sentence = found(
        lab(padded + INITIAL + STEP.replace("params[name] +=", "params = {**params}; params[name] = params[name] +")),
        both_engines_agree,
    )
    assert f"must agree up to rounding; look at local_loss in {PLACE}: means over examples are batch.mean(" in sentence


@pytest.mark.parametrize("engine", ["loop", "vectorised"])
def test_a_loss_of_each_example_is_told_with_its_hook_and_line(lab, engine):
    case = lab(RIGHT.replace("task_loss(params, batch, view) +", "batch.y.double() *"))
    said = rf"^local_loss in {PLACE}, line 13, returned a tensor of shape \[6\], but a scalar is expected; write return batch."
    with pytest.raises(HookError, match=said):
        train(case.method, toy_task(engine=engine))


def test_a_method_with_cycles_says_so_by_has_model():
    assert said_by(algorithms.make("fedcat")).in_cycles and not said_by(algorithms.make("fedavg")).in_cycles


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fedmin"], "Unknown algorithm 'fedmin'. Did you mean 'fedmine'?"),
        (["fedmine", "--set", "strenth=2"], "Unknown setting or option of fedmine 'strenth'. Did you mean 'strength'?"),
        (["fedmine", "--no-effect", "strenth"], "Unknown option of fedmine 'strenth'. Did you mean 'strength'?"),
        (
            ["fedmine", "--set", "strength=7"],
            f"FedMine in {PLACE} failed in line 18: NameError: name 'least' is not defined.",
        ),
        (["fedmine", "--set", "strength=much"], "fedmine: strength must be a valid number, but got 'much'."),
    ],
)
def test_what_does_not_exist_is_refused_before_anything_is_trained(lab, arguments, sentence):
    lab(RIGHT + "\n    def __post_init__(self):\n        assert self.strength < 5 or least\n")
    code, text = call_bench("check", *arguments)
    assert sentence in text and code == 2


def test_of_an_unknown_method_a_class_without_its_decorator_is_named_or_that_no_folder_is_used(tmp_path, monkeypatch):
    text = RIGHT.replace('@registered("fedmine")\n', "")
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": text})
    code, text = call_bench("check", "fedmine")
    without = f"{PLACE} has the class FedMine, without @registered(...)."
    first, second = text.splitlines()
    assert first.endswith(f"mylab: nothing yet. {without}") and second.endswith(f" {without}") and code == 2
    monkeypatch.delenv("SKEWBENCH_PLUGINS")
    assert "No folder of your own is in use: --plugins DIR" in call_bench("check", "fedmine")[1]


@pytest.mark.parametrize("between", ["# as in the paper\n", "\n", "# one\n\n# two\n"])
def test_a_comment_below_its_decorator_hides_no_method(tmp_path, monkeypatch, between):
    decorator = '@registered("fedmine")\n'
    method_files.register(tmp_path / "mylab", monkeypatch, {"fedmine": RIGHT.replace(decorator, decorator + between)})
    assert "fedmine" in algorithms.REGISTRY


def test_after_a_failure_on_which_nothing_rests_the_checks_go_on(monkeypatch):
    def fails(case: Case) -> None:
        """One."""
        raise Violation("it does not hold.")

    def holds(case: Case) -> None:
        """Two."""

    monkeypatch.setattr("bench.contract.report.CHECKS", [Check(fails, {}), Check(holds, {})])
    assert [outcome.failed for outcome in outcomes(Case("fedavg", algorithms.make("fedavg")))] == [True, False]


def test_of_several_lines_of_a_method_the_innermost_one_is_named(lab):
    inner = RIGHT.replace("tree.squared_distance(params, view.params)", "self.drift_of(params, view)")
    inner += "\n    def drift_of(self, params, view):\n        return tree.squared_distance(params, view.parms)\n"
    assert f"{PLACE}, line {len(inner.splitlines())}, in drift_of (return " in found(lab(inner), is_trained)


def test_diagnostics_that_are_no_json_after_divergence_are_told(lab):
    case = lab(RIGHT + '\n    def diagnostics(self, state):\n        return {"drift": float("nan")}\n')
    assert "diagnostics are no JSON after training that diverged" in found(
        case, divergence_ends_in_numbers_and_no_error
    )


OWN_LOOP = RIGHT.replace("RoundBased", "LocalResult, RoundBased, gradient", 1)
OWN_LOOP = (
    OWN_LOOP[: OWN_LOOP.index("    def local_loss")]
    + """    def local_update(self, data, plan, view):
        params = view.params
        for index in plan:
            slope = gradient(task_loss, params, data.take(index), view)
            params = tree.map(lambda p, g: p - 0.01 * self.strength * g, params, slope)
        return LocalResult({"delta": tree.subtract(params, view.params)}, view.client)
"""
)


def test_local_training_without_the_learning_rate_is_told_so(lab):
    """Nothing diverges, whatever the rate; a search of it would compare equal runs."""
    said = found(lab(OWN_LOOP), divergence_ends_in_numbers_and_no_error)
    assert (
        "training with a learning rate of 1e30 gives the same numbers as with another one; use view.settings.lr" in said
    )
    assert "an option that is a learning rate itself has a name that ends in _lr" in said
    case = lab(
        OWN_LOOP.replace("0.01 * self.strength", "self.local_lr").replace(
            "strength: float = 1.0", "local_lr: float = 0.01"
        )
    )
    assert found(case, divergence_ends_in_numbers_and_no_error).startswith("ok: ")


@pytest.mark.parametrize("steps", ["sign", "tanh"])
def test_a_method_with_bounded_steps_passes_and_is_said_not_to_diverge(lab, steps):
    """Params of a sign descent are finite at every learning rate."""
    loop = OWN_LOOP.replace("p - 0.01 * self.strength * g", f"p - view.settings.lr * g.{steps}()")
    assert found(lab(loop), divergence_ends_in_numbers_and_no_error) == (
        "ok: Training that diverges ends in numbers that are not finite, and not in an error; its numbers stay finite at a "
        "learning rate of 1e30, so only its accuracy shows that one is too large."
    )


def test_a_finite_check_that_leaves_out_what_diverges_is_told_so(lab):
    case = lab(RIGHT + '\n    def finite_check(self, state):\n        return state["server"]\n')
    said = found(case, divergence_ends_in_numbers_and_no_error)
    assert (
        said.startswith("FAILED: ")
        and " finite_check is finite after training with a learning rate of 1e30, but the " in said
    )


def test_a_chosen_learning_rate_is_not_that_of_divergence(lab):
    case = dataclasses.replace(lab(), chosen={"lr": 0.1})
    assert found(case, divergence_ends_in_numbers_and_no_error).startswith("ok: ")


def test_a_loop_that_leaves_out_settings_of_local_training_is_told_which(lab):
    said = found(lab(OWN_LOOP), local_training_follows_its_settings)
    assert (
        said.startswith("ok: Local training uses the settings ")
        and "write clipped(gradient(...), view.settings" in said
    )
    assert "; it leaves out momentum, weight_decay, max_gradient_norm, which descend uses; " in said
    taken = "gradient(task_loss, params, data.take(index), view)"
    text = OWN_LOOP.replace(taken, f"clipped({taken}, view.settings.max_gradient_norm)")
    text = text.replace("from algorithms", "from algorithms.shared.local_sgd import clipped\nfrom algorithms", 1)
    said = found(lab(text), local_training_follows_its_settings)
    assert "; it leaves out momentum, weight_decay, which descend uses; " in said
    assert found(lab(), local_training_follows_its_settings).endswith(" says which it leaves out.")


PEEKING = """
    def server_step(self, task, params, server, update, cohort):
        hidden = task.federation.test_images.double().mean() / 255
        return tree.add(params, tree.scale(update["delta"], self.strength * hidden)), server
"""
LOOKING = """
    def round_metrics(self, task, before, after, update, cohort):
        return {"brightness": task.federation.test_images.double().mean()}
"""


def test_a_method_that_trains_on_test_images_is_told_so_and_one_that_measures_on_them_is_not(lab):
    sentence = found(lab(RIGHT + PEEKING), nothing_is_trained_on_test_images)
    assert sentence.startswith("FAILED: What is trained and deployed does not depend on the test images: params.")
    assert "with other test images, but" in sentence and sentence.endswith(f"server_step in {PLACE}.")
    assert found(lab(RIGHT + LOOKING), nothing_is_trained_on_test_images).startswith("ok: ")


def test_a_method_whose_first_round_has_no_model_has_no_cycles_for_that():
    class Later(algorithms.load("fedavg")):
        def has_model(self, config, round):
            return round > 1

    assert not said_by(Later()).in_cycles


def test_idle_options_of_a_lab_are_refused_and_those_of_this_project_only_named(lab):
    lab()
    assert not check_command._case("fedmine", None, None).reports_idle
    assert check_command._case("fedprox", None, None).reports_idle


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_method_is_checked_with_a_falling_learning_rate(name):
    case = Case(name, algorithms.make(name), chosen={"lr_decay": 0.5})
    assert a_resumed_run_goes_on_as_if_uninterrupted(case) is None, "no violation is raised"
