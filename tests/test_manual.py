"""The README and the manual are true: what they show runs, what they name exists."""

import ast
import dataclasses
import functools
import inspect
import re
import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
import yaml

import algorithms
import datasets
import search_spaces
from algorithms.shared.local_sgd import descend
from algorithms.shared.rounds import RoundBased
from algorithms.shared.types import Batch, ClientView, Cohort, Settings
from bench import callbacks, models, registry
from bench.api import run
from bench.config.code_version import files_of
from bench.config.methods import defaults_of
from bench.config.resolve import resolve
from bench.contract.cases import Case
from bench.contract.checks import CHECKS
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.experiments.grid_schema import GridSpec, Reproduces
from bench.experiments.names_schema import Printed
from bench.experiments.report_schema import Layout
from bench.experiments.settings_schema import Budget, Condition, Tuning
from bench.measurements.specs import REGISTRY
from bench.measurements.tables import TABLES
from bench.published.lookup import papers
from bench.simulation.run import Run
from bench.simulation.task import Task
from datasets import transforms
from datasets.loaders import folders
from reports import api
from tests.support import architecture, manual, method_files, methods_page
from tests.support.alone import train_alone
from tests.support.manual import PAGES, ROOT, codes
from tests.support.small_datasets import random_images, write_folders
from tests.support.toy import toy_task, train

README = ROOT / "README.md"
DOCS = ROOT / "docs"
HOOKS, OWN_METHOD, OWN_GRID, METHODS, ARCHITECTURE = (
    DOCS / f"{name}.md" for name in ("hooks", "own-method", "own-grid", "methods", "architecture")
)
NOTEBOOKS = DOCS / "notebooks.md"
OWN_MODEL = DOCS / "own-model.md"
(VIT,) = (block.text for block in manual.blocks("python") if block.page == OWN_MODEL)
OWN_DATA = DOCS / "own-data.md"
POLLEN, HOSPITAL, TURNED, LEAVES = (block.text for block in manual.blocks("python") if block.page == OWN_DATA)
CALLBACKS = DOCS / "callbacks.md"
NOTED, *SHOWN = (block.text for block in manual.blocks("python") if block.page == CALLBACKS)
HOOKS = DOCS / "hooks.md"
(COSINE,) = (block.text for block in manual.blocks("python") if block.page == HOOKS)
OWN_FIGURE = DOCS / "own-figure.md"
(DRIFT,) = (block.text for block in manual.blocks("python") if block.page == OWN_FIGURE)
_NOT_HERE = (NOTEBOOKS, OWN_MODEL, OWN_DATA, OWN_FIGURE, CALLBACKS, HOOKS, DOCS / "data.md")
(EXAMPLE,) = {block.text for block in manual.blocks("python") if block.page not in _NOT_HERE}  # on two pages


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The method of the README, and the model, dataset, partition and transform of the manual, in a lab's folder."""
    files = {"algorithms/fedams.py": EXAMPLE, "algorithms/fednoted.py": NOTED, "models/vit.py": VIT}
    files |= {"algorithms/fedcosine.py": COSINE}
    data = {"datasets/pollen.py": POLLEN, "partitions/hospital.py": HOSPITAL, "transforms/turned.py": TURNED}
    data |= {"figures/drift.py": DRIFT}
    method_files.use(tmp_path, monkeypatch, files | data)
    monkeypatch.setattr(algorithms, "describe", lambda name: EXAMPLE.splitlines()[0].strip('"'))
    return algorithms.load("fedams")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The files that the manual shows, or makes by a command, in the current folder, and those of the clone in docs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(DOCS)
    (tmp_path / "parts.json").write_text('{"train": [[0, 1], [2, 3]]}')
    for name, content in manual.named_files().items():
        (tmp_path / name).write_text(content)
    return tmp_path


def test_the_readme_names_every_paper_that_has_grids():
    (sentence,) = re.findall(r"which tables and figures of [^.]* are grids here", README.read_text())
    assert {paper for paper in papers() if paper not in sentence.lower()} == set()


# Commands


def test_every_block_is_of_a_kind_that_is_checked():
    kinds = {block.language for block in manual.blocks()}
    assert kinds == {"bash", "python", "yaml", "text"}
    fences = sum(len(re.findall(r"^ *```", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(manual.blocks())


@pytest.mark.parametrize("block", manual.blocks("bash"), ids=lambda block: f"{block.page.stem}: {block.text[:40]!r}")
def test_commands_would_be_taken(block, example, files):
    found = manual.commands(block)
    assert found or block.needs == "tensorboard"
    for words in found:
        manual.check(words)


def test_commands_in_sentences_would_be_taken(example, files):
    found = [code for page in PAGES for code in manual.inline_code(page) if " -m bench" in code]
    assert len(found) > 10
    for code in found:
        manual.check(code.split())


def test_a_wrong_command_is_found(files):
    for wrong in (
        "python -m bench run --grid paper_table1 --sed 0",
        "python -m bench run --grid paper_table",
        "python -m bench run --grid paper_table1 --only dataset=cifar",
        "python -m bench tune --algorithm fedprox --dataset cifar10 --partition label-2 --set nu=1",
        "python -m bench show",
        "make quick",
        "python -m pytest tests/test_readme.py",
        "ray start --first",
    ):
        with pytest.raises(manual.REFUSED):
            manual.check(wrong.split())


def test_options_in_sentences_exist_and_every_option_is_explained():
    known = manual.option_names()
    named = {page: [*re.findall(r"(?<![\w-])--[a-z][\w-]*", " ".join(manual.inline_code(page)))] for page in PAGES}
    others = {
        "--nodes",
        "--ntasks-per-node",
        "--cpus-per-task",
        "--gpus-per-node",
        "--python",
        "--require-hashes",
        "--constraints",
        "--fix",
        "--dist",
        "--moved",
    }
    assert {name: page.name for page, names in named.items() for name in names if name not in known | others} == {}
    explained = {name for names in named.values() for name in names}
    for command in manual.COMMANDS:
        assert set(manual.options_of(command)) - explained == set(), command


# Links and lists


def test_every_link_leads_somewhere():
    seen = 0
    for page in PAGES:
        for target in re.findall(r"\]\(<?([^)>\s]+)>?\)", page.read_text()):
            if target.startswith("http"):
                continue
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.is_file(), f"{page.name}: {target}"
            assert not anchor or anchor in manual.headings(found), f"{page.name}: {target}"
            seen += 1
    assert seen > 40


def test_no_page_has_a_section_twice():
    for page in PAGES:
        sections = re.findall(r"^## .*", page.read_text(), re.MULTILINE)
        assert len(sections) == len(set(sections)), page


def test_every_path_of_the_repository_that_is_named_exists():
    folders = ("algorithms/", "bench/", "datasets/", "docs/", "reports/", "search_spaces/", "tests/")
    named = [code for page in PAGES for code in manual.inline_code(page) if code.startswith(folders)]
    mine = (
        "algorithms/fedams.py",
        "datasets/pollen.py",
        "algorithms/<name>.py",
        "search_spaces/<name>.yaml",
        "reports/examples",
    )
    assert len(named) > 20 and [path for path in named if path not in mine and not (ROOT / path).exists()] == []


def test_the_front_page_is_short():
    assert len(README.read_text().splitlines()) <= 150


# Messages


def test_every_message_of_troubleshooting_is_one_of_the_code():
    found = [
        part
        for folder in ("algorithms", "bench", "datasets")
        for path in (ROOT / folder).rglob("*.py")
        for part in texts_of(path)
    ]
    quoted = re.findall(r"^### (.+)$", (DOCS / "troubleshooting.md").read_text(), re.MULTILINE)
    quoted += re.findall(r"`([^`\n]+ … ?[^`\n]*)`", (DOCS / "troubleshooting.md").read_text())
    assert len(quoted) >= 20
    for message in quoted:
        pattern = ".*".join(map(re.escape, message.split("…")))
        assert any(re.search(pattern, text) for text in found), message


def texts_of(path: Path) -> list[str]:
    """The texts in a file of Python, as they are after joining; "…" for each value that is put in."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            texts.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
    return texts


# The landing page


@pytest.mark.slow
def test_the_tables_of_the_front_pages_are_what_their_command_prints(tmp_path):
    """To a point: other processors round in another way."""
    assert "--grid quickstart" in (ROOT / "Makefile").read_text()
    results = train_alone(ROOT / "bench" / "grids" / "quickstart.yaml", tmp_path / "results")
    printed, *_ = tables(results / "reports" / "quickstart@paper.md")
    for page in (README, DOCS / "index.md"):
        shown = next(table for table in tables(page) if table[0] == printed[0])
        assert [row[:2] for row in shown] == [row[:2] for row in printed]
        assert [*map(means, shown)] == [pytest.approx(means(row), abs=1.0) for row in printed]


def test_the_leaderboard_of_the_landing_page_is_the_committed_one():
    reports = DOCS / "examples" / "leaderboards" / "reports"
    accuracies, ranks, *_ = tables(
        reports / "leaderboard_mnist@paper+search_seeds=0+searcher=random+tuned=validation.md"
    )
    accuracy = {row[0]: [cell.strip("_*") for cell in (row[1], row[5])] for row in accuracies}
    expected = [[row[0], *accuracy[row[0]], row[1]] for row in ranks[1:]]
    first = [row for row in expected if row in expected[:5] or row[0] == "FedAvg"]
    assert next(table for table in tables(DOCS / "index.md") if table[0][0] == "method")[1:] == first


def tables(page: Path) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, the headings first."""
    found = re.findall(r"^(\|.*\n)\|[-:| ]+\n((?:\|.*\n)+)", page.read_text(), re.MULTILINE)
    lines = [(head + rows).splitlines() for head, rows in found]
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in table] for table in lines]


def means(row: list[str]) -> list[float]:
    """The numbers of a row of a table, without their stds."""
    return [float(number) for number in re.findall(r"([\d.]+)±", " ".join(row))]


# Methods


def test_the_blocks_of_methods_follow_from_their_files():
    assert METHODS.read_text() == methods_page.current(), "`python -m tests.support.methods_page` writes them anew"


def test_a_block_has_the_paper_the_options_the_cost_and_the_differences_of_a_method():
    blocks = dict(re.findall(r"^### (.*)\n\n((?:(?!##).*\n)*)", METHODS.read_text(), re.MULTILINE))
    assert {name for text in blocks.values() for name in re.findall(r"^`([\w-]+)`: ", text, re.MULTILINE)} == {
        *algorithms.REGISTRY
    }
    assert "<https://arxiv.org/abs/1910.06378>" in blocks["SCAFFOLD"]
    for line in (
        "- `weighting` (uniform), `server_lr` (1), `momentum_mode` (outside): see [options of control variates](",
        "- Cost: 2× bytes, 1× examples; each client keeps 1× a model.",  # a control variate is as large as a model
        "- Differs from the paper, which has no momentum: ",
    ):
        assert f"\n{line}" in blocks["SCAFFOLD"]
    assert "\n- `server_lr`: global step size (eta_g), > 0.\n" in blocks["Options of control variates"]
    assert "- `concatenation` (false)\n" in blocks["FedCat"]
    assert "mu_i moves by e - s; x follows g(x + e)" in blocks["FedSMOO"].partition("</details>")[0]
    assert (
        "<pre>logits                  mean_i z_i[c]" in blocks["Ensemble"]
        and "\n- `rule` (logits)" in blocks["Ensemble"]
    )
    assert blocks["DENSE"].count("<details>") == blocks["DENSE"].count("\n- Differs from ") == 1, "not for each name"
    assert "\n- Cost beside the number of examples: " in blocks["DENSE"]
    for name in ("ccvr", "fedconcat", "fedsam", "fedper"):
        shown = dict(re.findall(r"`(\w+)` \(([^)]*)\)", blocks[algorithms.title_of(name)].partition("\n- Cost")[0]))
        assert shown.keys() == defaults_of(name).keys(), name


def test_every_model_stands_in_the_table_with_its_sizes():
    rows = {codes(name)[0]: sizes for name, *sizes, _ in manual.table(DOCS / "models.md", "model")}
    assert rows.keys() == models.REGISTRY.keys()
    for name, (images, *sizes) in rows.items():
        num_classes, num_params, feature_dim = (int(size.replace(",", "")) for size in sizes)
        model = models.load(name)(tuple(map(int, images.split("x"))), num_classes)
        assert sum(leaf.numel() for leaf in model.init(torch.Generator()).values()) == num_params, name
        assert model.feature_dim == feature_dim, name
    said = (DOCS / "models.md").read_text()
    assert all(f"`{alias}` is another name of `{name}`" in said for alias, name in models.REGISTRY.aliases.items())
    assert all(
        f"`{name}`" in said.partition("run on the engine `loop` only")[0].rpartition("`resnet50` has")[2]
        for name in models.REGISTRY
        if models.load(name)((3, 32, 32), 10).loop_only
    )


def test_every_transform_stands_in_the_table_with_its_datasets():
    rows = {codes(name)[0]: about for name, about, _ in manual.table(DOCS / "data.md", "transform")}
    assert rows.keys() == transforms.REGISTRY.keys()
    assert {name: rows[name] for name in ("moon", "fedcat")} == {
        name: ", ".join(transforms.recipes_of(name)) for name in ("moon", "fedcat")
    }


def test_the_example_method_runs_from_a_config_and_its_options_count(example):
    settings = {"algorithm": "fedams", "dataset": "digits", "partition": "label-2", "clients": 10, "rounds": 2}
    digits = datasets.load("digits", None)
    losses = []
    for server_lr in (0.01, 0.1):
        run = Run(resolve({**settings, "local_epochs": 1, "server_lr": server_lr}), digits)
        losses.append([run.step(), run.step()][-1]["loss"])
    assert losses[0] != losses[1]


def test_the_example_method_agrees_on_both_engines(example):
    looped, vectorised = (train(example(), toy_task(engine=engine))["params"] for engine in ("loop", "vectorised"))
    for name in looped:
        torch.testing.assert_close(looped[name], vectorised[name], rtol=0, atol=1e-8)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.rule)
def test_the_example_method_passes_the_contract(example, check):
    check(Case("fedams", example()))


def test_first_step_of_the_example_by_hand(example):
    """Delta 1: first moment 0.1, second 0.01, its largest value so far 0.01, step 0.01 * 0.1 / 0.1."""
    params = {"w": torch.tensor(0.0, dtype=torch.float64)}
    updates = {"delta": {"w": torch.ones(1, dtype=torch.float64)}}
    cohort = toy_task().cohort(torch.tensor([0]))
    new, _ = example().aggregate(None, params, example().init_server(None, params), updates, cohort)
    assert new["w"].item() == pytest.approx(0.01)


# What a method is made of


def members(cls: type, *, beside: type = object) -> dict[str, str]:
    """Public names that a class defines, or that it adds to another one; methods with the names of their arguments."""
    found = {}
    for name, member in vars(cls).items():
        if name.startswith("_") or name in vars(beside) or name == "of":
            continue
        found[name] = f"{name}({', '.join(arguments(member))})" if inspect.isfunction(member) else name
    return found


def arguments(function) -> list[str]:
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    names, star = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not star:
            names, star = [*names, "*"], True
        names.append(f"*{one.name}" if one.kind is one.VAR_POSITIONAL else one.name)
    return names


def test_the_tables_of_hooks_have_every_hook_with_its_arguments():
    hooks = [codes(row[0])[0] for row in hook_rows()]
    attributes = [codes(row[0])[0] for row in manual.table(HOOKS, "attribute")]
    defined = {name: hook for kind in RoundBased.__mro__[:-1] for name, hook in members(kind).items()}
    assert sorted(hooks + attributes) == sorted(defined.values())
    for row in manual.table(HOOKS, "attribute"):
        (name,), (default,) = codes(row[0]), [row[1].strip("`")]
        assert default == str(getattr(RoundBased, name))


def hook_rows() -> list[list[str]]:
    """The tables of hooks: those that most methods need, and all others."""
    text = OWN_METHOD.read_text() + HOOKS.read_text()
    rows = re.findall(r"^\| hook \|.*\n\|[-| ]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(rows) == 3
    return [[cell.strip() for cell in row.split("|")[1:-1]] for part in rows for row in part.splitlines()]


def test_the_table_of_local_training_has_every_argument():
    named = [name for row in manual.table(HOOKS, "argument") for name in codes(row[0])]
    assert named == list(inspect.signature(descend).parameters)


@pytest.mark.parametrize(
    "heading, names",
    [
        ("field of `view`", [field.name for field in dataclasses.fields(ClientView)]),
        ("field of `batch`", list(Batch._fields)),
        ("field of `cohort`", [field.name for field in dataclasses.fields(Cohort)]),
        ("field or method of `task`", [*{field.name: 0 for field in dataclasses.fields(Task)} | members(Task)]),
    ],
)
def test_the_tables_of_what_hooks_get_are_complete(heading, names):
    rows = manual.table(HOOKS, heading)
    assert sorted(code.partition("(")[0] for row in rows for code in codes(row[0])) == sorted(names)
    if "task" in heading:
        signatures = {code for row in rows for code in codes(row[0]) if "(" in code}
        assert signatures == {signature for signature in members(Task).values() if "(" in signature}
    if "view" in heading:
        (settings,) = [row[1] for row in rows if row[0] == "`settings`"]
        assert codes(settings)[1:] == [field.name for field in dataclasses.fields(Settings)]


# Grids, search spaces, datasets


@pytest.mark.parametrize(("name", "own", "rival"), [("fedams", "fedams", "moon"), ("fedmine", "fedmine", "lg-fedavg")])
def test_boards_with_a_method_of_ones_own_extend_those_of_ours(files, name, own, rival):
    path = files / f"with_{name}.yaml"
    path.write_text(path.read_text().replace(own, rival))
    grid = load_grid(path.name)
    for budget, seeds in (("full", 5), ("smoke", 1)):
        cells = expand(grid, budget)
        assert len([cell for cell in cells if cell.setting("algorithm") == rival]) == 2 * seeds
    assert grid.report.columns == "partition" and grid.stored_name == f"with_{name} v2"


@pytest.mark.slow
def test_the_grid_of_the_manual_is_played_and_its_report_has_all_it_asks_for(files):
    content = yaml.safe_load((files / "mu.yaml").read_text())
    assert len(expand(load_grid("mu.yaml"), "paper")) == 2 * 3 * (1 + 4 + 1)
    assert len(expand(load_grid("gains.yaml"), "paper")) == 3 * 3
    assert len(expand(load_grid("mu.yaml"), "two-rounds")) == 2 * 3
    small = content["budgets"].pop("two-rounds")
    content["settings"] |= small["settings"]
    content["axes"] |= {"seed": small["seeds"]}
    content["conditions"][0]["set"] |= small["conditions"][0]["set"]
    (files / "short.yaml").write_text(yaml.safe_dump(content))
    results = train_alone(files / "short.yaml", files / "results")
    table = (results / "reports" / "short@paper.md").read_text()
    assert content["title"] in table and content["report"]["notes"][0] in table and "Mean ranks" in table
    drawn, _ = api.GridReport(results, "short", "paper").write_figures()
    assert {path.name for path in drawn} >= {"short@paper-communication.png", "short@paper-by-mu.png"}


def test_the_tables_of_the_parts_of_a_grid_have_every_key():
    rows = {key: row[1] for row in manual.table(OWN_GRID, "key of a grid") for key in codes(row[0])}
    assert rows.keys() == GridSpec.model_fields.keys() - {"name", "source"} | {"extends"}
    parts = {"reproduces": Reproduces, "conditions": Condition, "tuning": Tuning, "budgets": Budget, "report": Layout}
    for key, part in parts.items():
        assert set(codes(rows[key])) >= part.model_fields.keys(), key
    described = {key for row in manual.table(OWN_GRID, "key of `printed`") for key in codes(row[0])}
    assert described == Printed.model_fields.keys()
    rows = [row for kind in ("figure", "measured table") for row in manual.table(OWN_GRID, f"kind of {kind}")]
    shown = {codes(row[0])[0]: set(codes(row[1])) for row in rows}
    kinds = {kind: entry.load() for kind, entry in REGISTRY.items()} | TABLES
    assert shown == {kind: set(part.model_fields) - {"kind"} for kind, part in kinds.items()}


def test_the_search_space_of_the_manual_is_one(files):
    space = search_spaces.load("space.yaml")
    assert space.keys() == {"mu"} | search_spaces.load("training").keys() and space["mu"].log


def test_the_dataset_of_the_manual_is_found_also_beside_another_one(tmp_path, monkeypatch):
    loaders = shutil.copytree(Path(folders.__file__).parent, tmp_path / "loaders")
    (loaders / "leaves.py").write_text(LEAVES)
    monkeypatch.setattr(datasets.loaders, "__path__", [])  # and the one of today afterwards
    home = registry._home
    monkeypatch.setattr(registry, "_home", lambda of: loaders if of == "datasets.loaders" else home(of))
    monkeypatch.setattr(registry, "_entries", functools.cache(registry._entries.__wrapped__))
    images = random_images(40, 3, 32)
    write_folders(tmp_path / "leaves", ["oak", "elm"], images, per_class=20)
    write_folders(tmp_path / "CINIC-10", ["cat", "dog"], images[::-1], per_class=2)
    found = datasets.load("leaves", tmp_path, cache_dir=tmp_path / "cache")
    assert found.classes == ("elm", "oak") and found.train.images.shape == (40, 3, 32, 32)
    assert resolve({"algorithm": "fedavg", "dataset": "leaves", "partition": "iid"}).model == "simple-cnn"


def test_the_dataset_and_the_partition_of_the_manual_train_a_run(tmp_path, monkeypatch, example):
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pollen").mkdir()
    np.save(tmp_path / "pollen" / "images.npy", random_images(40, 3, 32).transpose(0, 2, 3, 1))
    np.save(tmp_path / "pollen" / "labels.npy", np.arange(40) % 3)
    given = {"algorithm": "fedavg", "dataset": "pollen", "partition": "hospital-0.7", "clients": 3, "rounds": 1}
    played = run(given, data_dir=tmp_path)
    assert played.config.dataset.startswith("lab:pollen@") and played.config.model == "simple-cnn"
    assert [len(client) for client in played.run.task.federation.clients] == [22, 5, 5]
    assert "partition hospital" in played.record["code"]


def test_the_callbacks_of_the_manual_are_those_of_the_harness_and_stand_in_its_table():
    names = ("per_class_accuracy", "server_ema")
    assert SHOWN == [(ROOT / "bench" / "callbacks" / f"{name}.py").read_text() for name in names]
    rows = {codes(row[0])[0]: row[2] for row in manual.table(CALLBACKS, "callback")}
    assert rows.keys() == {name for name, entry in callbacks.REGISTRY.items() if not entry.lab}
    for name, options in rows.items():
        fields = dataclasses.fields(callbacks.REGISTRY[name].load())
        said = {key: default for key, default in re.findall(r"`(\w+)` \(([^)]*)\)", options)}
        assert said == {field.name: str(field.default).lower() for field in fields}, name


def test_the_method_with_metrics_of_the_manual_reports_them_in_its_grid(example, files):
    given = {
        "algorithm": "fednoted",
        "dataset": "digits",
        "partition": "iid",
        "clients": 5,
        "rounds": 1,
        "local_epochs": 1,
    }
    (row,) = run(given | {"callbacks": "per-class-accuracy"}).run.rows
    assert row["metrics"].keys() >= {"method/grad_norm", "method/drift", "per-class-accuracy/3"}
    grid = load_grid("noted.yaml")
    assert {cell.config.callbacks[0]["decay"] for cell in expand(grid, "full")} == {0.5}
    assert grid.report.metric == "accuracy" and grid.report.metrics[1:] == ["server-ema/accuracy", "method/drift"]


def test_the_learning_rate_of_the_manual_falls_after_the_first_round(example):
    given = {"dataset": "digits", "partition": "iid", "clients": 2, "rounds": 2, "local_epochs": 1}
    falls, stays, fedavg = (
        [row["loss"] for row in run(given | options).run.rows]
        for options in (
            {"algorithm": "fedcosine"},
            {"algorithm": "fedcosine", "least": 1.0},
            {"algorithm": "fedavg"},
        )
    )
    assert stays == fedavg and falls[0] == fedavg[0] and falls[1] > fedavg[1]


def test_the_transform_of_the_manual_trains_a_run(example):
    given = {
        "algorithm": "fedavg",
        "dataset": "digits",
        "partition": "iid",
        "rounds": 1,
        "local_epochs": 1,
        "clients": 2,
    }
    played = run(given | {"transform": "turned"})
    assert played.run.task.federation.transform.recipe == transforms.Recipe(flip=True, rotation=30.0)
    assert not transforms.recipe("turned", "mnist").flip
    assert "transform turned" in played.record["code"]


# A model of one's own


@pytest.mark.slow
def test_the_model_of_the_manual_trains_and_its_code_is_that_of_its_runs(tmp_path, example):
    assert (models.title_of("vit"), models.describe("vit")) == ("ViT", "A vision transformer on patches of 4x4 pixels.")
    given = {"algorithm": "fedavg", "dataset": "digits", "partition": "iid", "clients": 3, "rounds": 6, "model": "vit"}
    config = resolve(given | {"lr": 0.05})
    run = Run(config, datasets.load("digits", tmp_path, cache_dir=tmp_path / "cache"))
    while not run.finished:
        row = run.step()
    assert row["accuracy"] > 0.3
    used = {path.relative_to(path.parents[1]).as_posix() for path in files_of(config)}
    assert {"models/vit.py", "models/modules.py"} <= used


# Notebooks


@pytest.mark.slow
def test_the_notebook_of_the_manual_runs_and_shows_what_the_page_says(tmp_path, monkeypatch, capsys):
    matplotlib.use("Agg")
    (tmp_path / "docs").symlink_to(DOCS)  # results are read from there, and the figure is written beside it
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in manual.blocks("python"):
        if block.page == NOTEBOOKS:
            exec(block.text, names)
    assert (tmp_path / "seeds.png").stat().st_size > 10_000
    ends = names["rounds"].query("algorithm == 'fedntd' and round == 20")["accuracy"]
    assert sorted(ends.round(1)) == [0.1, 0.1, 0.1, 0.9, 0.9]
    assert names["means"].idxmax() == pytest.approx((0.002958, 0.01), abs=1e-6), "as docs/tuning.md says"
    assert names["means"].max() == pytest.approx(0.396, abs=5e-4) and set(names["curves"]["run"]) == {
        *names["best"]["run"]
    }
    assert names["wide"]["mean"].loc[("cifar10", "label-2"), "fedconcat"] == pytest.approx(22.73)
    *_, shares = capsys.readouterr().out.splitlines()
    last = names["result"].rounds["accuracy"].iloc[-1]
    assert len(eval(shares)) == 10 and sum(eval(shares)) / 10 == pytest.approx(last, abs=0.03)


# The code as a whole


def test_the_drawing_of_the_packages_is_current():
    assert architecture.DRAWING.read_text() == architecture.draw(), (
        "`python -m tests.support.architecture` draws it anew"
    )


def test_every_package_is_described():
    described = [name for row in manual.table(ARCHITECTURE, "package") for name in codes(row[0])]
    *rows, _ = architecture.layers()
    assert sorted(described) == sorted(name for row in rows for name in row if name != "bench.__main__")


def test_the_ten_words_are_ten():
    assert len(manual.table(ARCHITECTURE, "word")) == 10


def test_what_runs_before_a_commit_is_what_make_format_runs():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    target = re.search(r"^format: setup\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    wanted = target.replace("$(BIN)", ".venv/bin").replace("\t", "").splitlines()
    assert [hook["entry"] for hook in repository["hooks"]] == wanted
