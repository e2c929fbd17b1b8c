"""What frozen encoders know: heads by hand, encoders by their definition, the command from end to end."""

import json
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import datasets
from algorithms.local_training import LocalTraining
from bench.analyses import dataset_sizes, encoder_heads, encoder_models, encoder_spec, encoders
from bench.analyses.cache import Parts
from bench.analyses.encoder_heads import Examples, classification_loss, reconstruction_loss
from bench.cli import encoders as cli_encoders
from bench.cli.app import app
from bench.errors import ConfigError
from bench.simulation.client import Settings
from reports.exports.encoder_tables import LOSSES

DIGITS = {"dataset": "digits", "model": "mlp"}
SETTINGS = Settings(
    rounds=1,
    local_epochs=3,
    local_steps=None,
    batch_size=8,
    lr=0.1,
    momentum=0.9,
    weight_decay=0.01,
    participation=1.0,
    last_batch="keep",
)


@pytest.fixture
def examples():
    """20 examples of 5 features, with 3 classes and 4 pixels."""
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(20, 5, generator=draw)
    return Examples(z, torch.arange(20) % 3), Examples(z, torch.rand(20, 4, generator=draw))


@pytest.fixture
def analysis(tmp_path):
    spec = encoder_spec.load("smoke", DIGITS)
    return encoder_models.Analysis(spec, datasets.load("digits", None), parts(tmp_path))


@pytest.fixture
def bench(tmp_path):
    """Runs `encoders` on digits, which every machine has; returns exit code and everything printed."""

    def call(*arguments: str, stand_in: bool = True) -> tuple[int, str]:
        digits = ["--substitute", "fmnist=digits", "--set", "model=mlp"] if stand_in else []
        where = ["--budget", "smoke", "--data-dir", str(tmp_path), "--results-dir", str(tmp_path / "results")]
        result = CliRunner().invoke(app, ["encoders", *digits, *where, *arguments], env={"COLUMNS": "200"})
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return call


def parts(folder, said=None):
    return Parts(folder, "name", {"settings": {}}, {"commit": "abc"}, (said if said is not None else []).append)


# What is trained


def test_the_file_says_what_the_paper_says():
    spec = encoder_spec.load()
    local = spec.local
    assert (local.dataset, local.partition, local.clients, local.seed) == ("fmnist", "label-2", 40, 1)
    assert (local.local_epochs, local.batch_size, local.lr, local.momentum, local.weight_decay) == (
        50,
        64,
        0.01,
        0.9,
        1e-5,
    )
    assert (local.algorithm["name"], local.rounds, local.train_examples) == ("local", 1, None)
    assert (spec.fedavg.algorithm["name"], spec.fedavg.rounds, spec.fedavg.local_epochs) == ("fedavg", 5, 10)
    assert spec.label == "paper" and spec.local.model == "simple-cnn"


def test_every_budget_fits_every_dataset_of_the_small_cnn():
    for budget in ("paper", "small", "smoke"):
        for dataset in ("fmnist", "mnist", "cifar10", "svhn"):
            spec = encoder_spec.load(budget, {"dataset": dataset})
            assert spec.local.dataset == spec.fedavg.dataset == dataset
            assert (spec.local.train_examples is None) == (budget == "paper")


def test_a_setting_that_is_the_files_own_does_not_rename_the_results():
    assert encoder_spec.load("smoke", {"seed": 1}).label == "smoke"
    assert encoder_spec.load("smoke", {"seed": 2}).label == "smoke+seed=2"


def test_all_mistakes_are_told_at_once_with_the_nearest_names():
    wrong = {"head_epoch": 3, "decoder_width": -1, "partition": "lable-2", "rounds": 3}
    with pytest.raises(ConfigError) as caught:
        encoder_spec.load("paper", wrong)
    text = str(caught.value)
    assert "Unknown setting 'head_epoch'. Did you mean 'head_epochs'?" in text
    assert "Unknown setting 'rounds'." in text and "decoder_width must be greater than or equal to 0" in text
    assert "Did you mean 'label-k'?" in text


def test_one_client_is_not_enough():
    with pytest.raises(ConfigError, match="clients must be at least 2, the first two are compared, but got 1."):
        encoder_spec.load("paper", DIGITS | {"partition": "iid", "clients": 1})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("settings: {}\nbudgets: {}\nsetings: {}", "Unknown key 'setings'. Did you mean 'settings'?"),
        ("settings: {}", "budgets is missing."),
        ("settings: {", "is not valid YAML"),
        ("settings: {}\nbudgets: {smoke: {}}", "Unknown budget 'paper'. Known: smoke."),
    ],
)
def test_a_file_that_is_wrong_is_explained(tmp_path, text, said):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(said)):
        encoder_spec.load("paper", file=tmp_path / "own.yaml")


# Heads


def by_hand(head, loss, examples):
    """The same training written out: v = 0.9 v + gradient + 0.01 w, w = w - 0.1 v, three passes over the same batches."""
    params, order = list(head.parameters()), encoder_heads.generator_for(4, "head-batches", 2)
    speeds = [torch.zeros_like(leaf) for leaf in params]
    for rows in sum((torch.randperm(20, generator=order).split(8) for _ in range(3)), ()):
        gradients = torch.autograd.grad(loss(head(examples.features[rows]), examples.targets[rows]), params)
        speeds = [0.9 * v + g + 0.01 * w.detach() for v, g, w in zip(speeds, gradients, params, strict=True)]
        for leaf, speed in zip(params, speeds, strict=True):
            leaf.data -= 0.1 * speed
    return loss(head(examples.features), examples.targets).item()


def initial(build):
    torch.manual_seed(encoder_heads.seed_for(4, "head-init"))
    return build()


def test_a_classifier_is_trained_by_sgd(examples):
    expected = by_hand(initial(lambda: nn.Linear(5, 3)), F.cross_entropy, examples[0])
    assert classification_loss(examples[0], 3, SETTINGS, 4, 2) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("width", [0, 6])
def test_a_decoder_is_trained_by_sgd(examples, width):
    def build():
        layers = [nn.Linear(5, width), nn.ReLU()] if width else []
        return nn.Sequential(*layers, nn.Linear(width or 5, 4), nn.Sigmoid())

    expected = by_hand(initial(build), F.mse_loss, examples[1])
    assert reconstruction_loss(examples[1], width, SETTINGS, 4, 2) == pytest.approx(expected, rel=1e-5)


def test_the_seed_and_the_examples_key_the_training_of_a_head(examples):
    found = {classification_loss(examples[0], 3, SETTINGS, seed, data) for seed in (0, 1) for data in (0, 1)}
    assert len(found) == 4


def test_a_head_leaves_the_global_random_state_alone(examples):
    before = torch.random.get_rng_state()
    classification_loss(examples[0], 3, SETTINGS, 4, 2)
    assert torch.equal(before, torch.random.get_rng_state())


# Encoders


def test_at_the_papers_seed_the_clients_own_the_papers_classes(analysis):
    """Appendix C: classes 0 and 2, and 1 and 9; which class a client owns does not depend on the images."""
    owned = [analysis.task.federation.labels[rows].unique().tolist() for rows in analysis.rows]
    assert owned == [[0, 2], [1, 9]]


def test_local_encoders_are_those_of_clients_that_train_side_by_side(analysis):
    task, local = analysis.task, LocalTraining()
    together = local.deploy(task, local.step(task, local.init(task)), torch.arange(2)).params
    for client in range(2):
        alone = analysis._model(f"fe{client + 1}")["params"]
        assert all(torch.equal(alone[name], together[name][client]) for name in together)


def test_the_average_is_weighted_by_examples_and_concatenation_puts_features_side_by_side(analysis):
    first, second, mean = (analysis._model(name)["params"]["linear1.weight"] for name in ("fe1", "fe2", "favg"))
    sizes = [len(rows) for rows in analysis.rows]
    assert sizes[0] != sizes[1]
    torch.testing.assert_close(mean, (sizes[0] * first + sizes[1] * second) / sum(sizes))
    apart = [analysis._features(name) for name in ("fe1", "fe2")]
    assert torch.equal(analysis._features("fe"), torch.cat(apart, 1))
    assert apart[0].shape == (sum(sizes), 64)


def test_one_fedavg_round_averages_models_of_its_own_number_of_epochs(analysis):
    spec = encoder_spec.load("smoke", DIGITS | {"fedavg_local_epochs": 5})
    same = encoder_models.Analysis(spec, analysis.dataset, analysis._parts)
    assert spec.local.local_epochs == 5
    averaged = [one._features("fedavg-1") for one in (same, analysis)]
    torch.testing.assert_close(averaged[0], analysis._features("favg"))
    assert not torch.allclose(averaged[0], averaged[1])


def test_heads_see_the_examples_they_are_named_after(analysis, monkeypatch):
    seen = {}
    monkeypatch.setattr(
        encoder_heads, "classification_loss", lambda known, *rest: seen.setdefault(rest[-1], known) and 1.0
    )
    monkeypatch.setattr(encoder_heads, "reconstruction_loss", lambda known, *rest: seen.setdefault(9, known) and 1.0)
    for examples in ("client 0", "client 1", "both"):
        analysis.loss("cls_loss", "fe1", examples)
    analysis.loss("rec_loss", "fe1", "client 1")
    assert [seen[key].targets.unique().tolist() for key in (0, 1, 2)] == [[0, 2], [1, 9], [0, 1, 2, 9]]
    assert torch.equal(seen[2].features, torch.cat([seen[0].features, seen[1].features]))
    pixels = analysis.task.federation.images[analysis.rows[1]].flatten(1) / 255
    assert torch.equal(seen[9].targets, pixels) and torch.equal(seen[9].features, seen[1].features)


@pytest.mark.parametrize(
    ("option", "metrics"),
    [({"head_epochs": 2}, LOSSES), ({"head_lr": 0.5}, LOSSES), ({"decoder_width": 0}, ["rec_loss"])],
)
def test_every_option_of_the_heads_changes_the_losses_it_is_about(analysis, option, metrics):
    spec = encoder_spec.load("smoke", DIGITS | option)
    changed = encoder_models.Analysis(spec, analysis.dataset, analysis._parts)
    for metric in LOSSES:
        before, after = (one.loss(metric, "fe1", "both") for one in (analysis, changed))
        assert (before != after) == (metric in metrics)


def test_a_partition_with_noise_is_refused(tmp_path):
    spec = encoder_spec.load("smoke", DIGITS | {"partition": "noise-0.1"})
    with pytest.raises(ValueError, match="Encoders are compared on clean images, but noise-0.1 adds noise"):
        encoder_models.Analysis(spec, datasets.load("digits", None), parts(tmp_path))


# Finished parts


def test_a_part_is_computed_once_for_everything_it_depends_on(tmp_path):
    said = []
    for value in (1.5, 2.5):
        assert parts(tmp_path, said).number("loss", {"seed": 0}, lambda value=value: value) == 1.5
    assert parts(tmp_path, said).number("loss", {"seed": 1}, lambda: 3.5) == 3.5
    assert said == ["loss: 1.5000", "loss: 3.5000"]
    stored = json.loads((tmp_path / "analyses" / "name.json").read_text())["parts"]
    assert [(part["value"], part["of"], part["commit"]) for part in stored.values()] == [
        (1.5, {"seed": 0}, "abc"),
        (3.5, {"seed": 1}, "abc"),
    ]


def test_a_number_that_is_not_finite_is_stored_as_none(tmp_path):
    assert parts(tmp_path).number("loss", {}, lambda: float("nan")) is None
    assert parts(tmp_path).number("loss", {}, lambda: 1.0) is None


def test_a_model_comes_back_as_it_was(tmp_path):
    model = {"params": {"w": torch.arange(3.0)}, "buffers": {}}
    parts(tmp_path).model("encoder", {}, lambda: model)
    again = parts(tmp_path).model("encoder", {}, lambda: pytest.fail("trained twice"))
    assert torch.equal(again["params"]["w"], model["params"]["w"])


def test_damaged_files_are_named_set_aside_and_made_again(tmp_path):
    parts(tmp_path).model("encoder", {}, dict)
    (stored,) = (tmp_path / "analyses").glob("*.pt")
    stored.write_bytes(b"x")
    told = []
    model = {"params": {"w": torch.ones(1)}}
    assert parts(tmp_path, told).model("encoder", {}, lambda: model) == model
    (tmp_path / "analyses" / "name.json").write_text("{")
    parts(tmp_path, told)
    for name, line in ((stored.name, told[0]), ("name.json", told[2])):
        assert name in line and line.endswith("It is in superseded/ now, and what was in it is computed again.")
        assert (tmp_path / "superseded" / f"{name}-1").exists()


# The command


def test_tables_and_figures_from_one_command(bench, tmp_path):
    code, text = bench()
    assert code == 0 and "No images of fmnist: digits stands in." in text
    assert re.search(r"\| f_e1 +\| yes +\| \d\.\d{4}, on digits +\| \d\.\d{4}, on digits", text)
    assert re.search(r"\| f_avg +\| \d\.\d{4}, on digits", text)
    assert text.count(
        "fmnist was replaced by digits: these cells check the mechanics, not fmnist, and have no published"
    )
    assert "client 0: " in text and "Differs from the paper: " in text
    written = sorted(path.name for path in (tmp_path / "results" / "reports").iterdir())
    label = "@smoke+model=mlp"
    tables = [f"paper_table{number}{label}.{format}" for number in (6, 7) for format in ("csv", "md", "tex")]
    figures = [f"paper_figure{number}-pca{label}.{format}" for number in (5, 6) for format in ("pdf", "png", "svg")]
    assert written == figures + tables
    stored = json.loads((tmp_path / "results" / "analyses" / f"encoders{label}.json").read_text())
    assert stored["data"]["kind"] and stored["settings"]["dataset"] == "digits"
    assert sum("value" in part for part in stored["parts"].values()) == 16


def test_an_interrupted_command_continues_and_ends_in_the_same_table(bench, tmp_path, monkeypatch):
    whole = bench("--table", "6")[1].partition("# ")[2]
    (tmp_path / "results").rename(tmp_path / "first")
    real, calls = encoder_heads.reconstruction_loss, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(encoder_heads, "reconstruction_loss", interrupted)
    code, text = bench("--table", "6")
    assert code == 130 and "the same command continues with the rest" in text
    code, text = bench("--table", "6")
    assert code == 0 and text.partition("# ")[2] == whole
    assert len(calls) == 1 + 1 + 3, "the first head is not trained again"
    assert "fe1: trained" not in text and "fe2: trained" in text


def test_one_table_needs_no_fedavg_and_one_figure_needs_no_heads(bench, tmp_path):
    _, text = bench("--table", "7")
    assert "favg on both" in text and "FedAvg" not in text
    _, text = bench("--figure", "6", "--view", "tsne", "--set", "fedavg_rounds=2,points=10")
    assert "FedAvg: trained" in text and "loss" not in text
    assert [path.name for path in (tmp_path / "results" / "reports").glob("*figure*.png")] == [
        "paper_figure6-tsne@smoke+fedavg_rounds=2+model=mlp+points=10.png"
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "error: No fmnist in "),
        (["--table", "5"], "Unknown table '5'. Known: 6, 7."),
        (["--figure", "7"], "Unknown figure '7'."),
        (["--view", "tnse"], "Did you mean 'tsne'?"),
        (["--set", "haed_lr=1"], "Did you mean 'head_lr'?"),
        (["--dataset", "fmnits"], "Did you mean 'fmnist'?"),
        (["--substitute", "cifar10=digits"], "--substitute cifar10=...: the analysis uses fmnist."),
        (["--substitute", "fmnist=digits"], "SimpleCnn needs images of at least 16x16 pixels"),
    ],
)
def test_a_mistake_gets_one_sentence_and_exit_code_2(bench, arguments, said):
    code, text = bench(*arguments, stand_in=False)
    assert code == 2 and said in text and "Traceback" not in text


def test_tables_without_images_say_so_beside_the_published_losses(bench, tmp_path):
    code, text = bench("--table", "6", stand_in=False)
    assert code == 0 and "No fmnist in " in text
    (path,) = (tmp_path / "results" / "reports").glob("paper_table6*.md")
    table = path.read_text()
    assert table.count("no data: fmnist") == 8 and "diverged" not in table


def test_training_that_diverged_is_in_the_table_and_cannot_be_drawn(bench):
    code, text = bench("--table", "6", "--set", "lr=1e30")
    assert code == 0 and "diverged, on digits" in text and "nan" not in text
    code, text = bench("--figure", "5", "--set", "lr=1e30")
    assert code == 2 and "Figure 5 cannot be drawn: training diverged" in text


# As grids


def test_a_table_is_played_as_a_grid(tmp_path, capsys):
    where = {"data_dir": tmp_path, "results_dir": tmp_path / "results"}
    cli_encoders.run_grid("paper_table7", "smoke", {"model": "mlp"}, [3], ["fmnist=digits"], **where)
    text = capsys.readouterr().out
    assert "# Encoders on the examples of both clients" in text and "seed 3" in text
    assert (tmp_path / "results" / "reports" / "paper_table7@smoke+model=mlp+seed=3.tex").exists()


@pytest.mark.parametrize(
    ("grid", "seeds", "overrides", "said"),
    [
        ("paper_table6", [0, 1], {}, "paper_table6 is about one seed, but got 0, 1."),
        ("paper_table8", [0], {"lr": 1}, "paper_table8 counts images; it takes no --set or --seeds."),
    ],
)
def test_what_a_table_does_not_read_is_refused(tmp_path, grid, seeds, overrides, said):
    with pytest.raises(ValueError, match=said):
        cli_encoders.run_grid(grid, "smoke", overrides, seeds, None, tmp_path, tmp_path)


def test_sizes_are_counted_in_the_images_that_are_here(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    for split, count in (("train", 3), ("test", 1)):
        for label in range(10):
            folder = tmp_path / "cifar10" / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.full((32, 32, 3), 20 * label + number, np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    cli_encoders.run_grid("paper_table8", "smoke", {}, None, None, tmp_path, tmp_path / "results")
    text = capsys.readouterr().out
    assert re.search(r"\| cifar10 +\| 30 \(50,000, -49,970\) +\| 10 \(10,000, -9,990\) +\| 10 \(10, \+0\)", text)
    assert re.search(r"\| svhn +\| no data: svhn, published 73,257", text)
    assert "Incomplete data: cifar10 from image folders" in text
    found = json.loads((tmp_path / "results" / "analyses" / "paper_table8@smoke.json").read_text())["datasets"]
    assert found == dataset_sizes.dataset_statistics(tmp_path)
    assert list(found) == ["cifar10", "svhn", "fmnist", "cifar100", "tinyimagenet"] and found["svhn"] is None


@pytest.mark.slow
def test_on_real_handwriting_concatenation_tells_more_about_classes_than_averaging(real_data, tmp_path):
    """The claim of Table 7, and that of Table 6: an encoder tells less about the classes of the other client."""
    spec = encoder_spec.load("small", {"dataset": "mnist"})
    (paths,) = encoders.run(
        spec, tables=[7], data_dir=real_data, results_dir=tmp_path, on_message=lambda _: None
    ).values()
    text = paths[0].read_text()
    found = {name: float(loss) for name, loss in re.findall(r"\| (f_\w+) +\| \**([\d.]+)", text)}
    assert found["f_e"] < min(found["f_e1"], found["f_e2"], found["f_avg"])
