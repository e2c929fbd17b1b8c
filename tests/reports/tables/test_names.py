"""One rule turns ids into names; names are where the things are."""

import pytest

import algorithms
from bench import models
from datasets.info import INFO
from datasets.partitions import KINDS
from reports.tables.names import Name, Names, axis_label
from tests.support import method_files


@pytest.mark.parametrize(
    ("key", "value", "plain", "latex"),
    [
        ("dataset", "cifar10", "CIFAR-10", "CIFAR-10"),
        ("dataset", "imagefolder:/home/me/leaves/", "leaves", "leaves"),
        ("partition", "label-2", "#C = 2", r"$\#C=2$"),
        ("partition", "dir-0.10", "Dir(0.1)", r"$p_k \sim \mathrm{Dir}(0.1)$"),
        ("partition", "dirichlet-equal-0.1", "Dir(0.1), equal sizes", r"$p_k \sim \mathrm{Dir}(0.1)$, equal sizes"),
        ("partition", "region-3-0.1", "3 regions, Dir(0.1)", r"3 regions, $p_k \sim \mathrm{Dir}(0.1)$"),
        ("partition", "dir-none", "dir-none", "dir-none"),
        ("algorithm", "fedconcat-id", "FedConcat-ID", "FedConcat-ID"),
        ("algorithm", "fedcat-dc", "FedCat-DC", "FedCat-DC"),
        ("algorithm", "of_my_own", "of_my_own", r"of\_my\_own"),
        ("base", "fedprox mu=0.1", "FedProx, μ=0.1", r"FedProx, $\mu$=0.1"),
        ("wrapper", "ccvr", "+ CCVR", "+ CCVR"),
        ("wrapper", "none", "base", "base"),
        ("model", "vgg9", "VGG-9", "VGG-9"),
        ("clients", "100", "100", "100"),
    ],
)
def test_an_id_has_a_name_in_plain_text_and_in_latex(key, value, plain, latex):
    assert Names().value(key, value) == (plain, latex)


def test_headings_say_of_what_values_are_unless_these_do():
    names = Names()
    assert names.title("algorithm", "moon").plain == "MOON"
    assert names.title("num_clusters", "5") == ("K=5", "$K$=5")
    assert names.title("virtual_per_class", "100").latex == "$M_c$=100"
    assert names.title("train_examples", "100").plain == "train examples=100"
    assert [names.heading(key).plain for key in ("algorithm", "clients", "mu", "num_rounds_of_my_own", "lr_decay")] == [
        "Method", "#Clients", "μ", "Number of rounds of my own", "Learning rate decay",
    ]  # fmt: skip
    assert [axis_label(key) for key in ("num_clusters", "mu", "fraction")] == [
        "Number of clusters ($K$)",
        r"$\mu$",
        "Fraction",
    ]


def test_values_of_several_axes_make_one_name():
    names = Names()
    assert names.together(["algorithm", "wrapper"], ["fedavg", "ccvr"]).plain == "FedAvg + CCVR"
    assert names.together(["wrapper", "algorithm"], ["none", "fedavg"]).plain == "FedAvg"
    assert names.together(["dataset", "partition"], ["svhn", "iid"]).plain == "SVHN, IID"
    known = names.with_combined(["algorithm", "wrapper"], [("fedavg", "ccvr")])
    assert known.value("algorithm wrapper", "fedavg ccvr").plain == "FedAvg + CCVR"


def test_a_choice_has_the_symbols_of_its_options():
    choice = Names().choice('mu=0.01, num_clusters=5, last_batch="keep", weight_decay=1e-05')
    assert choice.plain == 'μ=0.01, K=5, last_batch="keep", weight_decay=1e-05'
    assert choice.latex == r'$\mu$=0.01, $K$=5, last\_batch="keep", weight\_decay=1e-05'


def test_names_of_a_grid_come_first():
    names = Names.of_grid({"report": {"names": {"partition": {"dir-0.1": "α = 0.1"}}}})
    assert names.value("partition", "dir-0.1") == ("α = 0.1", r"$\alpha$ = 0.1")
    assert names.value("partition", "dir-0.5").plain == "Dir(0.5)"


def grid_of(axis: str, values: list[str], names: dict | None = None) -> dict:
    usual = {"dataset": "digits", "partition": "iid", "substitute": None, "config": {"algorithm": {"name": "fedavg"}}}
    layout = {"rows": ["dataset", "partition"], "columns": "algorithm", "names": {axis: names or {}}}
    return {"report": layout, "cells": [usual | {axis: value} for value in values]}


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        (["/data/train", "/home/me/leaves"], ["train", "leaves"]),
        (["/data/spring/train", "/data/autumn/train/"], ["train (spring)", "train (autumn)"]),
        (["/a/spring/train", "/b/spring/train"], ["train (a)", "train (b)"]),
        (["/a/x/train", "/b/x/train", "/a/y/train"], ["train (1)", "train (2)", "train (3)"]),
        (["/train", "mine/train"], ["train (1)", "train (2)"]),
        (["/home/mine/SVHN", "/home/mine/cifar10"], ["SVHN (mine)", "cifar10 (mine)"]),
    ],
)
def test_image_folders_of_one_name_and_those_called_like_a_dataset_are_told_apart_without_a_path(folders, named):
    datasets = [f"imagefolder:{folder}" for folder in folders]
    names = Names.of_grid(grid_of("dataset", [*datasets, "svhn"]))
    assert [names.value("dataset", dataset).plain for dataset in datasets] == named
    assert names.value("dataset", "svhn").plain == "SVHN" and names.title("dataset", datasets[0]).plain == named[0]


def test_a_dataset_that_replaces_another_is_told_apart_too():
    grid = grid_of("dataset", ["imagefolder:/a/train"])
    grid["cells"][0]["substitute"] = "imagefolder:/b/train"
    assert Names.of_grid(grid).value("dataset", "imagefolder:/b/train").plain == "train (b)"


def test_names_that_a_grid_gives_stay_and_other_axes_have_their_ids_behind_them():
    folders = ["imagefolder:/a/train", "imagefolder:/b/train"]
    names = Names.of_grid(grid_of("dataset", folders, {folders[0]: "train"}))
    assert [names.value("dataset", folder).plain for folder in folders] == ["train", "train (b)"]
    names = Names.of_grid(grid_of("partition", ["dir-0.1", "dir-0.10", "iid"]))
    assert [names.value("partition", value) for value in ("dir-0.10", "iid")] == [
        ("Dir(0.1) (dir-0.10)", r"$p_k \sim \mathrm{Dir}(0.1)$ (dir-0.10)"),
        ("IID", "IID"),
    ]


def test_everything_of_the_box_has_a_name_of_its_own():
    titles = [algorithms.title_of(name) for name in algorithms.REGISTRY]
    assert len({*titles}) == len(titles) and not {*titles} & {name for name in algorithms.REGISTRY if name[:3] == "fed"}
    assert all(info.title for info in INFO.values()) and all(
        "title" in entry.given for entry in models.REGISTRY.values()
    )
    for entry in KINDS.values():
        title, latex, count = entry.given["title"], entry.given.get("latex"), len(entry.given.get("symbols", ()))
        assert title.count("{}") == count and (latex is None or latex.count("%s") == count)


@pytest.fixture
def registered(tmp_path, monkeypatch):
    """Registers methods of these files, as a new file in the folder would be."""

    return lambda **files: method_files.register(tmp_path, monkeypatch, files)


def test_a_new_method_needs_one_file_for_its_name(registered):
    registered(
        fedmine='"""FedMine: clients dig."""\n\n@registered("fedmine")\nclass FedMine:\n    pass\n',
        mine='"""A method of mine: it digs."""\n\n@registered("my-1", title="Mine & co.", mu=0.1)\nclass Mine:\n    pass\n',
        other='"""Nothing to read."""\n\n@registered("other")\nclass Other:\n    pass\n',
    )
    names = [Names().value("algorithm", name) for name in ("fedmine", "my-1", "other")]
    assert names == [Name.of("FedMine"), ("Mine & co.", r"Mine \& co."), Name.of("other")]
    assert algorithms.presets("my-1") == {"mu": 0.1}


@pytest.mark.parametrize(
    ("symbol", "plain", "latex"),
    [
        ("K_e", "K_e", "$K_e$"),
        ("\\lambda", "λ", r"$\lambda$"),
        ("λ", "λ", r"$\lambda$"),
        ("λ_k", "λ_k", r"$\lambda _k$"),
        ("Δw", "Δw", r"$\Delta w$"),
    ],
)
def test_a_symbol_may_be_written_as_a_letter_or_as_in_latex(registered, symbol, plain, latex):
    registered(mine=f'@registered("mine", symbols={{"pull": {symbol!r}}})\nclass Mine:\n    pull: float = 1.0\n')
    assert Names().choice("pull=0.1") == (f"{plain}=0.1", f"{latex}=0.1")


def test_two_symbols_of_one_option_are_refused(registered):
    registered(mine='@registered("mine", symbols={"num_clusters": "k"})\nclass Mine:\n    pass\n')
    with pytest.raises(ValueError, match=r"mine.py: the symbol of num_clusters is k, but that of another method K"):
        algorithms.symbols()


def test_a_title_that_is_no_text_is_refused(registered):
    registered(mine='@registered("mine", title=3)\nclass Mine:\n    pass\n')
    with pytest.raises(ValueError, match="title of mine must be a text, but got 3."):
        algorithms.title_of("mine")
