"""Which published numbers count as measured, and the page that lists them."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.experiments.cells import to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid
from bench.published.lookup import keys_of, papers
from bench.results.store import Store, stores_in
from reports.reproduction import page
from reports.reproduction.counts import Count, count_tables
from reports.reproduction.measured import find_measured
from reports.reproduction.planned import Plans
from tests.support import manual
from tests.support.heads import POOLED, SEVEN, write_probe
from tests.support.manual import ROOT
from tests.support.stores import finish

PAGE, EXAMPLES = ROOT / "docs" / "reproduction.md", ROOT / "docs" / "examples"


PLANS = Plans()  # reads all grids


@pytest.fixture(scope="module")
def committed():
    return find_measured(stores_in(EXAMPLES), PLANS)


@pytest.mark.slow
def test_the_page_follows_from_the_committed_results(committed):
    before, after = page.around(PAGE)
    said = PAGE.read_text().removeprefix(before).removesuffix(after)
    assert said == f"\n\n{page.render(committed, PLANS)}\n", (
        "make it again: python -m bench reproduction, as the page says"
    )


def test_commands_of_the_page_name_exactly_the_committed_runs(committed):
    assert len(committed) >= 7
    for one in committed:
        assert named_by(one.command) == {*one.runs}, one.command


def named_by(command: str) -> set[str]:
    """Ids of the runs that a command plays."""
    python, module, bench, *words = command.split()
    options = manual.check_bench(words)
    return {cell.id for cell in manual.cells_of(options["grid"], options)}


# Made-up results. Published in Table 1 of FedConcat for cifar10, label-2: fedavg 53.6±0.8, fedconcat 56.9±0.2.


def measured(store, name: str = "paper_table1") -> list:
    """What counts of a store, whose grid is given the name of one of ours."""
    path = store.save() / "grids" / f"small_table@{store.budget}.json"
    path.with_stem(f"{name}@{store.budget}").write_text(json.dumps(json.loads(path.read_text()) | {"grid": name}))
    path.unlink()
    return find_measured([Store(store.folder)], PLANS)


def test_a_number_with_all_seeds_has_a_verdict_and_the_command_of_its_grid(store):
    one, _ = measured(store.add("cifar10 label-2", "fedavg", [0.52, 0.53, 0.54]))  # Table 5 has it, too
    assert (one.published.key[:5], str(one.published)) == (
        ("fedconcat", "1", "cifar10", "label-2", "fedavg"),
        "53.6±0.8",
    )
    assert (one.mean, one.verdict, one.seeds, one.planned_seeds) == (pytest.approx(53.0), "inside", 3, 3)
    only = "dataset=cifar10,partition=label-2,algorithm=fedavg"
    assert one.command == f"python -m bench run --grid paper_table1 --only {only} --data-dir data"
    text = page.render([one], PLANS)
    assert "**1 of" in text and ", by 3 runs; 1 different number," in text and "with all seeds and settings: 1;" in text
    *_, line = [line for line in text.splitlines() if line.startswith("| FedConcat, 1:")]
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells[:-1] == [
        "FedConcat, 1: CIFAR-10, #C = 2, FedAvg",
        "53.6±0.8",
        "53.0±0.8",
        "-0.6",
        "inside ±2.0",
        "3 of 3",
        "unknown",
    ]


def test_a_page_names_the_file_of_a_user_s_grid_without_its_folder(store):
    path = store.add("cifar10 label-2", "fedavg", [0.52, 0.53, 0.54]).save() / "grids" / "small_table@paper.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "source": "/home/jane/mine.yaml"}))
    (one, _) = find_measured([Store(path.parents[1])], PLANS)
    assert one.command.startswith("python -m bench run --grid mine.yaml --only ")


def test_too_few_seeds_are_counted_without_a_verdict(store):
    one, _ = measured(store.add("cifar10 label-2", "fedavg", [0.53, None, None]))
    assert (one.seeds, one.planned_seeds, one.verdict) == (1, 3, "")
    assert " --seeds 0 " in one.command
    text = page.render([one], PLANS)
    assert "| none yet, seeds are missing " in text and "| 1 of 3 " in text
    assert "**1 of" in text and "with all seeds and settings: 0;" in text


def test_a_rule_that_needs_no_stds_waits_for_all_seeds(store):
    """FedCat: 99.04 on mnist, dir-0.1; at most 0.3 points."""
    store.reproduces, store.verdict = {"paper": "fedcat", "table": 1}, "fedcat"
    setting = {"clients": 100, "participation": 0.1, "model": "mcmahan2017-mnist-cnn"}
    one, again = measured(store.add("mnist dir-0.1", "fedavg", [0.988], **setting), "fedcat_table1")
    assert (one.published.table, again.published.table) == ("1", "2")
    assert (one.seeds, one.planned_seeds, one.verdict) == (1, 3, "")
    one, _ = measured(store.add("mnist dir-0.5", "fedavg", [0.991, 0.992, 0.993], **setting), "fedcat_table1")[1::2]
    assert (one.seeds, one.verdict, one.band) == (3, "inside", 0.3)
    text = page.render([one], PLANS)
    assert "| inside ±0.30 " in text and "at a budget that the paper leaves partly open: 1." in text
    assert "- FedCat, Table 1: the paper leaves open rounds, seeds, and of which round numbers are; these are" in text


def test_what_differs_from_the_paper_does_not_count(store):
    store.add("cifar10 label-2", "fedavg", [0.5], substitute="mnist")
    store.add("cifar10 label-3", "fedavg", [0.5], data_note="half of the images")
    store.add("svhn label-2", "fedavg", [0.5], clients=10)
    store.add("svhn label-3", "fedavg", [None])
    store.add("svhn dir-0.1", "fedavg", ["failed"])
    store.add("svhn dir-0.5", "random-clusters", [0.5])
    assert measured(store) == []


@pytest.mark.parametrize("budget", ["small", "paper+rounds=2"])
def test_another_budget_does_not_count(store, budget):
    store.budget = budget
    assert measured(store.add("cifar10 label-2", "fedavg", [0.5, 0.5, 0.5])) == []


def test_a_grid_that_mirrors_nothing_does_not_count(store):
    store.reproduces = None
    assert measured(store.add("cifar10 label-2", "fedavg", [0.5])) == []


def test_a_grid_that_counts_for_nothing_may_have_a_wrong_figure(store):
    """Of another version, or of a lab's kind of figure whose options have changed."""
    store.reproduces, store.report = None, store.report | {"figures": [{"kind": "curves", "x": "mb"}]}
    assert measured(store.add("cifar10 label-2", "fedavg", [0.5])) == []


def test_a_run_that_diverged_has_been_played(store):
    one, _ = measured(store.add("cifar10 label-2", "fedavg", ["diverged"]))
    assert (one.seeds, one.diverged, one.verdict) == (1, 1, "")
    assert "| (1 diverged) |" in page.render([one], PLANS)


def test_a_part_of_a_tuning_set_has_no_verdict_and_is_said(store):
    """Table 1 tunes fedprox's mu over 0.001 and 0.01; 53.1±0.6 is published."""
    store.add("cifar10 label-2", "fedprox", [0.52, 0.53, 0.54], choice={"mu": 0.01})
    (one,) = measured(store)
    assert (one.settings, one.planned_settings, one.verdict) == (1, 2, "")
    assert "algorithm=fedprox,mu=0.01 --data-dir" in one.command
    assert "3 of 3, 1 of 2 settings" in page.render([one], PLANS)
    assert not one.is_complete
    store.add("cifar10 label-2", "fedprox", [0.50, 0.51, 0.52], choice={"mu": 0.001})
    (one,) = measured(store)
    assert (one.settings, one.planned_settings, one.verdict) == (2, 2, "inside")
    assert len(one.runs) == 6 and "mu=" not in one.command
    assert one.is_complete


def test_a_number_in_two_grids_counts_once_with_the_most_seeds(store, tmp_path):
    few, more = (type(store)(tmp_path / name) for name in ("few", "more"))
    measured(few.add("cifar10 label-2", "fedavg", [0.5]), "paper_figure8")
    measured(few.add("cifar10 label-3", "fedavg", [0.5]))
    measured(more.add("cifar10 label-2", "fedavg", [0.6, 0.6]))
    found = find_measured(stores_in(tmp_path), PLANS)
    listed = [(one.published.table, one.published.key[3], one.seeds) for one in found]
    assert listed == [(table, *one) for table in ("1", "5") for one in (("label-2", 2), ("label-3", 1))]
    assert {
        table: count.measured for table, count in count_tables(found, "fedconcat", PLANS).items() if count.measured
    } == {
        "1": 2,
        "5": 2,
    }


def test_own_methods_are_those_of_the_table_whichever_grid_has_the_numbers(store, read_published, tmp_path):
    """Table 5 has FedAvg as well, and FedConcat-ID is not its own method; Figure 8 has Table 1 without FedConcat-ID."""
    first, second = (type(store)(tmp_path / name) for name in ("a", "b"))
    first.reproduces = {"paper": "fedconcat", "table": 5, "own": ["dp-fedconcat"]}
    measured(first.add("cifar10 label-2", "fedavg", [0.5]), "paper_table5")
    row = [line for line in read_published("fedconcat") if line["table"] == "1"]
    for line in row:
        if (line["dataset"], line["partition"]) == ("cifar10", "label-2"):
            second.add("cifar10 label-2", line["algorithm"], [float(line["mean"]) / 100])
    measured(second)
    counts = count_tables(find_measured(stores_in(tmp_path), PLANS), "fedconcat", PLANS)["1"]
    assert (counts.rows, counts.signs, counts.compared) == (1, 2, 2)


def test_winner_and_sign_count_for_complete_rows_only(store, read_published):
    """As published fedconcat is ahead of all baselines; fedconcat-id is not, here, but published."""
    store.reproduces |= {"own": ["fedconcat", "fedconcat-id"]}
    row = [line for line in read_published("fedconcat") if line["table"] == "1"]
    row = [line["algorithm"] for line in row if (line["dataset"], line["partition"]) == ("cifar10", "label-2")]
    for algorithm in row[1:]:
        store.add("cifar10 label-2", algorithm, [{"fedconcat": 0.57, "fedconcat-id": 0.4}.get(algorithm, 0.5)])
    assert (table_1 := count_tables(measured(store), "fedconcat", PLANS)["1"]).rows == 0
    assert table_1.measured == len(row) - 1
    store.add("cifar10 label-2", row[0], [0.5])
    found = measured(store)
    assert count_tables(found, "fedconcat", PLANS)["1"] == Count(len(row), 87, rows=1, winners=1, signs=1, compared=2)
    assert [line.split("|")[4:6] for line in page.render(found, PLANS).splitlines() if "FedConcat, 1 " in line] == [
        [" 1 of 1        ", " 1 of 2      "]
    ]


@pytest.mark.parametrize(
    ("rival", "rows", "winners", "signs"),
    [
        ([0.55, None, None], 1, 1, 2),  # ahead of the means over all seeds, not of those of seed 0, which all have
        ([0.59, None, None], 1, 0, 0),
        ([None, None, 0.5], 0, 0, 0),  # no seed is common
    ],
)
def test_methods_are_compared_over_the_seeds_that_all_of_them_have(store, read_published, rival, rows, winners, signs):
    store.reproduces |= {"own": ["fedconcat", "fedconcat-id"]}
    found = {"fedconcat": [0.57, 0.5, None], "fedconcat-id": [0.56, 0.5, None], "fedprox": rival}
    for line in read_published("fedconcat"):
        if line["table"] == "1" and (line["dataset"], line["partition"]) == ("cifar10", "label-2"):
            store.add("cifar10 label-2", line["algorithm"], found.get(line["algorithm"], [0.4, 0.4, None]))
    counts = count_tables(measured(store), "fedconcat", PLANS)["1"]
    assert (counts.rows, counts.winners, counts.signs) == (rows, winners, signs)


def count_of_row(means: dict[str, float], paper: str, where: tuple[str, str]) -> Count:
    """The counts of one row of Table 1, in which methods have these means of its last metric, and else the published ones."""
    *_, contest = contests = PLANS.contests(paper, "1")
    found = [number for each in contests for number in each.numbers.stack().dropna() if number.key[2:4] == where]
    of_last = {*contest.numbers.stack().dropna()}
    facts = {"seeds": 3, "diverged": 0, "is_complete": True, "verdict": "", "scores": {}}
    measured = [
        SimpleNamespace(
            published=one, mean=means.get(one.key[4], float(one.mean)) if one in of_last else float(one.mean), **facts
        )
        for one in found
    ]
    return count_tables(measured, paper, PLANS)["1"]


@pytest.mark.parametrize(
    ("means", "winners", "signs"),
    [
        ({}, 1, 1),
        ({"scaffold": 99.3}, 0, 0),  # a rival that is not FedAvg
        ({"scaffold": 99.214}, 1, 0),  # it prints as FedCat does
    ],
)
def test_the_winner_is_sought_among_all_rivals_with_the_decimals_of_the_paper(means, winners, signs):
    """Table 1 of FedCat, mnist, dir-0.1: FedCat 99.21, FedGen 99.18, FedAvg 99.04, SCAFFOLD 98.92."""
    counts = count_of_row(means, "fedcat", ("mnist", "dir-0.1"))
    assert (counts.measured, counts.rows, counts.winners, counts.signs, counts.compared) == (6, 1, winners, signs, 1)


@pytest.mark.parametrize(("rsd", "winners"), [(12.3, 3), (1.0, 2)])
def test_less_is_better_of_the_spread_of_gains(rsd, winners):
    """Table 1 of FedCollab, concept shift: of all RSDs 2.16 is the best; accuracies and IPR are as published here."""
    counts = count_of_row({"per-fedavg": rsd}, "fedcollab", ("cifar100-coarse", "concept-shift"))
    assert (counts.rows, counts.winners) == (3, winners)


def test_a_budget_is_open_if_all_tables_of_a_number_leave_it_open(store):
    """FedConcat's paper leaves that of Tables 2 and 13 open, not that of Table 1."""
    one, _ = measured(store.add("cifar10 label-2", "fedavg", [0.53]))

    def open_budgets(*tables: str) -> str:
        keys = [(one.published.key[0], table, *one.published.key[2:]) for table in tables]
        text = page.render([replace(one, published=replace(one.published, key=key)) for key in keys], PLANS)
        return text.partition("partly open: ")[2][0]

    assert [open_budgets(*tables) for tables in (("1", "2"), ("2", "1"), ("2", "13"))] == ["0", "0", "1"]


@pytest.mark.parametrize(("named", "shown"), [("a|b`c\n<b>", "unknown"), ("version 0.1.0", "version 0.1.0")])
def test_a_commit_that_is_none_is_unknown_unless_it_is_a_version(store, named, shown):
    store.add("cifar10 label-2", "fedavg", [0.53])
    found = measured(store)
    path = store.folder / "runs" / found[0].runs[0] / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"commit": named}))
    one, _ = find_measured([Store(store.folder)], PLANS)
    assert one.commits == (shown,)


def test_measured_numbers_count_without_a_verdict(store):
    """Table 7 of FedConcat: losses 0.0810 and 0.0817 of the first of four encoders."""
    store.reproduces, store.verdict = {"paper": "fedconcat", "table": 7}, None
    store.report |= {"metric": "local_accuracy", "measured": POOLED, "notes": []}
    store.add("fmnist label-2", "local", [0.5], personal=True)
    values = {name: dict(zip(("cls_loss", "rec_loss"), both, strict=True)) for name, both in SEVEN.items()}
    about = {"clients": [0, 1], "label_counts": [[3], [1]]}
    write_probe(store, store.cells[0], "encoder-heads-pooled-256-0004", {"values": values, **about})
    found = measured(store, "paper_table7")
    (line,) = [line for line in page.render(found, PLANS).splitlines() if " fe1, cls_loss" in line]
    name, *numbers = [cell.strip() for cell in line.split("|")[1:5]]
    assert name == "FedConcat, 7: FMNIST, #C = 2, Local fe1, cls_loss"
    assert numbers == ["0.0810", "0.1000", "+0.0190"]
    assert len(found) == 8 and {one.verdict for one in found} == {""}
    assert count_tables(found, "fedconcat", PLANS)["7"] == Count(8, 8)


@pytest.mark.slow_but_first
@pytest.mark.parametrize("paper", papers())
def test_results_that_equal_the_published_ones_agree_in_every_row_of_every_table(paper):
    """Ties in print included: two rows of FedConcat have equal means alone, and no winner."""
    for table in dict.fromkeys(key[1] for key in keys_of(paper)):
        contests = PLANS.contests(paper, table)
        numbers = [number for contest in contests for number in contest.numbers.stack().dropna()]
        assert len(numbers) == len({number.key for number in numbers})
        found = [
            SimpleNamespace(
                published=one,
                mean=float(one.mean),
                seeds=3,
                diverged=0,
                is_complete=True,
                verdict="inside",
                scores={},
            )
            for one in numbers
        ]
        count = count_tables(found, paper, PLANS)[table]
        assert (count.winners, count.signs) == (count.rows, count.compared), table
        assert (count.rows > 0) == bool(contests)


def test_rows_of_a_table_are_those_of_its_own_grid():
    """Table 9 gives baselines another model than the paper's own methods; the variants of CCVR's Table 1 are pairs; a grid of
    FedCat's figures has a part of Table 1."""
    found = [("fedconcat", "9"), ("ccvr", "1"), ("fedcat", "1")]
    shapes = [contest.numbers.shape for table in found for contest in PLANS.contests(*table)]
    assert shapes == [(12, 7), (6, 3), (10, 6)]
    assert PLANS.contests("fedconcat", "7") == PLANS.contests("fedconcat", "99") == ()


def test_all_published_numbers_are_counted(read_published):
    numbers = {paper: len(read_published(paper)) for paper in papers()}
    counted = {paper: sum(count.numbers for count in count_tables([], paper, PLANS).values()) for paper in papers()}
    assert counted == numbers == {paper: len(set(keys_of(paper))) for paper in papers()}
    assert f"**0 of {sum(numbers.values()):,} published numbers" in page.render([], PLANS)


def test_a_run_counts_in_every_table_that_prints_its_number(tmp_path):
    """FedAvg of Table 1 of FedConcat stands in its Table 5 as well."""
    spec = load_grid("paper_figure8")
    cells = [cell for cell in expand(spec, "paper") if cell.setting("algorithm") == "fedavg"]
    with Store(tmp_path).locked() as store:
        store.write_grid("paper_figure8@paper", to_json(spec, "paper", {}, cells))
        for cell in cells:
            finish(store, cell, 0.5)
    found = find_measured([Store(tmp_path)], PLANS)
    assert [one.published.key[1] for one in found] == ["1", "5"] and {*found[0].runs} == {*found[1].runs}
    assert found[0].command == found[1].command
    assert "**2 of" in (text := page.render(found, PLANS)) and ", by 1 run; 1 different number, since" in text


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    "name",
    ["ccvr_table2", "fedcat_table3", "fedvls_table", "paper_table5", "paper_table9", "paper_table12", "paper_table13"],
)
def test_the_command_of_any_cell_plays_its_runs_alone(name, tmp_path):
    spec = load_grid(name)
    cells = expand(spec, "paper")
    some = cells[:: len(cells) // 4]
    with Store(tmp_path).locked() as store:
        store.write_grid(f"{name}@paper", to_json(spec, "paper", {}, some))
        for cell in some:
            finish(store, cell, 0.5)
    found = find_measured([Store(tmp_path)], PLANS)
    assert len(found) > 2
    for one in found:
        assert named_by(one.command) == {*one.runs}, one.command


@pytest.mark.parametrize("text", ["", page.BEGIN, page.END + page.BEGIN, 2 * (page.BEGIN + page.END)])
def test_a_page_without_its_markers_stays_as_it_is(tmp_path, text):
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(ValueError, match="must hold"):
        page.write(path, "new")
    assert path.read_text() == text


def test_a_page_that_is_no_text_is_named(tmp_path):
    path = tmp_path / "page.md"
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match=f"{path} is not a text in UTF-8"):
        page.write(path, "new")


def test_only_the_part_between_the_markers_is_replaced(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter")
    for _ in range(2):
        page.write(path, "new\n")
        assert path.read_text() == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter"
