"""The published layouts as LaTeX: tables of made-up runs whose numbers are the published ones read as the paper's do.

`python -m tests.reports.test_paper_style` writes the golden files anew; compare them with the paper before they are committed.
"""

import functools
import itertools
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.errors import ConfigError
from bench.experiments.cells import ordered, to_json
from bench.experiments.expansion import expand
from bench.experiments.grid_loading import load_grid, make_grid
from bench.results.store import Store
from reports import api
from reports.formats import latex, markdown
from reports.tables import paper_style, report
from reports.tables.names import Names
from reports.widths import TEMPLATES
from tests.support.processes import call_bench
from tests.support.tools import path_of

GOLDEN = Path(__file__).with_name("golden")
STORES = Path(__file__).parents[2] / "docs" / "examples"
TABLES = (
    *("paper_table1", "paper_table2", "paper_table3", "paper_table13", "paper_aaai_table2", "paper_aaai_table4"),
    *("ccvr_table1", "ccvr_table2", "fedcat_table1", "fedcat_table2", "fedcat_table3"),
    *("fedcollab_table1", "fedcollab_table2"),
)
SPREAD = np.array([-1, 0, 1])  # of three seeds, with a sample std of 1


@functools.cache
def published(name: str) -> report.Report:
    """The report, in the paper's style, of a grid whose runs have the published numbers."""
    grid = load_grid(name).untuned()
    stored = to_json(grid, "paper", {}, expand(grid, "paper"))
    expanded = ordered(stored, stored["cells"])
    records = {cell["run"]: record(0.5) for cell in expanded["cells"]}
    built = report.build(expanded, records).cells
    for cell in built[built["published"].notna()].itertuples():
        runs, std = cell.run_ids.split(), cell.published.spread or 0
        spread = SPREAD * (1.5**0.5 if expanded["std"] == "population" else 1) if len(runs) == 3 else [0] * len(runs)
        for run, shift in zip(runs, spread, strict=True):
            records[run] = record((float(cell.published.mean) + shift * std) / 100, std / 100)
    done = report.build(expanded, records)
    if name.startswith("fedcollab"):  # whose metrics are of clients
        done = report.build(expanded, {run: record_of_clients(0.5) for run in records})
        found = done.cells["published"]
        mean, std = ([float(getattr(one, key)) if one else np.nan for one in found] for key in ("mean", "std"))
        done = replace(done, cells=done.cells.assign(mean=mean, std=std))
    return paper_style.as_printed(done, expanded)


def record(accuracy: float, std: float = 0.0) -> dict:
    summary = {value: {"accuracy": accuracy} for value in ("last", "best", "last10")}
    summary |= {"last10_std": {"accuracy": std} if std else {}}
    return {"status": "done", "summary": summary}


def record_of_clients(accuracy: float) -> dict:
    """Where clients have test data of their own."""
    return {"status": "done", "summary": {"last": {"own_accuracy": accuracy}}, "client_accuracies": [accuracy] * 20}


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", TABLES)
def test_the_published_layout_is_this_file(name):
    assert latex.render(published(name)) == (GOLDEN / f"{name}.tex").read_text(encoding="utf-8")


# The tables of FedConcat's full version (arXiv 2312.06290): header, rows, "**" around what is bold.
PRINTED = json.loads(Path(__file__).with_name("fedconcat_tables.json").read_text(encoding="utf-8"))


@pytest.mark.slow_but_first
@pytest.mark.parametrize("number", PRINTED)
def test_rows_columns_numbers_and_bold_are_those_of_the_paper(number):
    lines = [line for line in markdown.render(published(f"paper_table{number}")).splitlines() if line.startswith("|")]
    assert [[cell.strip() for cell in line[1:-1].split("|")] for line in (lines[0], *lines[2:])] == PRINTED[number]


@pytest.mark.parametrize(
    ("number", "rows"),
    [
        (2, ["48.6% 48.9% 44.6%", "51.5% 53.1% 51.8%", "43.7% 47.6% 46.7%", "54.4% 56.7% 56.8%"]),
        (4, ["54.5% 56.9% 56.5%", "60.4% 62.0% 61.8%", "56.1% 57.7% 56.9%", "63.3% 64.2% 63.7%"]),
    ],
)
def test_the_tables_of_the_proceedings_have_the_best_baseline_and_means_alone(number, rows):
    lines = [
        line for line in markdown.render(published(f"paper_aaai_table{number}")).splitlines() if line.startswith("|")
    ]
    assert re.findall(r"\w[\w -]*\w", lines[0]) == ["Partition", "Best baseline", "FedConcat", "FedConcat-ID"]
    assert [" ".join(re.findall(r"[\d.]+%", line)) for line in lines[2:]] == rows


def test_the_best_of_the_others_says_of_how_many_it_is(store):
    store.reproduces |= {"own": ["fedconcat"]}
    store.report |= {"printed": {"best_other": "Best baseline", "std": False}}
    for row, moon in (("cifar10 label-2", 0.6), ("cifar10 label-3", None)):
        store.add(row, "fedavg", [0.5] * 3).add(row, "moon", [moon] * 3).add(row, "fedconcat", [0.55] * 3)
    lines = paper_of(store)
    assert lines[1:4] == [
        "| Dataset | Partition | Best baseline | FedConcat |",
        "| CIFAR-10 | #C = 2 | **60.0%** | 55.0% |",
        "| | #C = 3 | 50.0%† | **55.0%** |",
    ]
    assert lines[-1] == "- †: best of 1/2."


@pytest.mark.slow
def test_the_tables_of_fedcollab_have_its_metrics_and_no_gain_of_the_reference():
    text = latex.render(published("fedcollab_table1"))
    assert r"Method & Acc $\uparrow$ & IPR $\uparrow$ & RSD $\downarrow$ & Acc" in text
    assert r"Local Train & 86.05 $\pm$ 0.28 & - & - & 38.65" in text and text.count("\n+FEDCOLLAB & ") == 7
    table = latex.render(published("fedcollab_table2")).partition(r"\begin{tabular}")[2].partition(r"\end{tabular}")[0]
    assert "Local" not in table


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("paper_table2", "CIFAR-10; in percent"),
        ("paper_table4", "CIFAR-10; in percent"),
        ("paper_table12", "CIFAR-100; in percent"),
        ("ccvr_table1", "CIFAR-10; in percent"),
        ("ccvr_table2", "CIFAR-10 where α is given, CIFAR-100 and CINIC-10 with α = 0.5; in percent"),
        ("paper_table1", "In percent"),
    ],
)
def test_captions_name_what_all_cells_have_in_common(name, about):
    assert published(name).facts.startswith(about)
    assert rf"\caption{{{published(name).title}. {about}" in latex.render(published(name)).replace(r"$\alpha$", "α")


def test_captions_name_the_value_of_every_axis_that_the_table_leaves_out(store):
    store.reproduces = {"paper": "fedconcat", "table": 1}
    store.report |= {"rows": ["dataset", "partition", "clients"], "printed": {"rows": ["dataset"]}}
    store.add("cifar10 label-2", "fedavg", [0.5] * 3).add("svhn label-2", "fedavg", [0.5] * 3)
    assert paper_of(store)[-1].startswith("#C = 2, clients=40; accuracy in percent")


@pytest.mark.parametrize(
    "share, said", [(0.5, ", 50 % take part in a round"), (0.125, ", 12.5 % take part in a round"), (1.0, "")]
)
def test_captions_of_grids_of_ones_own_say_which_share_of_clients_takes_part(store, share, said):
    store.reproduces = None
    store.add("cifar10 label-2", "fedavg", [0.5] * 3, participation=share)
    assert f"clients{said}, " in paper_of(store)[-1]


@pytest.mark.slow_but_first
@pytest.mark.parametrize("name", TABLES)
def test_the_published_layout_compiles(name, tmp_path):
    (tmp_path / "paper.tex").write_text(latex.render_document(published(name)), encoding="utf-8")
    command = [path_of("pdflatex"), "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0 and "Overfull" not in done.stdout and "Missing character" not in done.stdout


LAYOUTS = {
    "twocolumn": ("twocolumn", "textwidth=7in,columnsep=0.25in,textheight=9in"),
    "ieee": ("twocolumn", "textwidth=516pt,columnsep=12pt,textheight=9.6in"),
    "icml": ("twocolumn", "textwidth=6.75in,columnsep=0.25in,textheight=9in"),
    "neurips": ("onecolumn", "textwidth=5.5in,textheight=9in"),
    "lncs": ("onecolumn", "textwidth=122mm,textheight=193mm"),
}


def compiled(text: str, folder: Path, layout: str = "twocolumn") -> str:
    """What pdflatex says of a document with these tables, in one line."""
    columns, geometry = LAYOUTS[layout]
    head = rf"\documentclass[{columns}]{{article}}\usepackage[{geometry}]{{geometry}}\usepackage{{booktabs,graphicx}}"
    document = f"{head}\n\\begin{{document}}\nText before.\n{text}\nText behind.\n\\end{{document}}\n"
    (folder / "paper.tex").write_text(document, encoding="utf-8")
    command = [path_of("pdflatex"), "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout
    return done.stdout.replace("\n", "")


SIDEWAYS = "is set sideways, because upright its letters would be too small"


@pytest.mark.slow_but_first
@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layouts_fit_the_papers_of_conferences(layout, tmp_path):
    said = compiled("".join(latex.render(published(name)) for name in TABLES), tmp_path, layout)
    assert "Overfull" not in said and "Float too large" not in said
    assert (SIDEWAYS in said) == (layout in ("neurips", "lncs"))


EXAMPLES = (
    ("paper_table1", "small", "paper_table1"),
    ("ccvr_table2", "small", "ccvr"),
    ("leaderboard_cifar10", "paper", "leaderboards"),
    ("leaderboard_mnist", "paper+search_seeds=0+searcher=random+tuned=validation", "leaderboards"),
)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_of_the_examples_fit_the_papers_of_conferences(layout, tmp_path):
    """With footnotes, and those that are longer than a page."""
    tables = (api.GridReport(STORES / store, grid, budget).render(format="tex") for grid, budget, store in EXAMPLES)
    said = compiled("".join(tables), tmp_path, layout)
    assert "Overfull" not in said and "Float too large" not in said


def test_latex_takes_the_size_and_the_float_that_a_table_needs(store, tmp_path):
    """Measured by LaTeX: widths of the boxes that it makes, with the commands of its own log."""
    store.reproduces = None
    show = r"\def\tableplaced{\typeout{<\tablefloat\space\the\wd\tablebox>}\tablebody\tablenotes}"
    found = {}
    for before, count in itertools.pairwise((0, 2, 4, 10, 14)):
        for number in range(before, count):
            store.add("cifar10 label-2", f"a-method-{number}", [0.5] * 3)
        text = store.render(format="tex", style="paper")
        placed = re.compile(r"\\def\\tableplaced\{\\setbox0.*?\\fi\}", re.DOTALL)
        assert len(placed.findall(text)) == 1
        said = compiled(placed.sub(lambda _: show, text), tmp_path)
        found[count] = re.findall(r"<(table\*?) ([\d.]+)pt>", said), SIDEWAYS in said
    widths = [float(of[0][1]) for of, _ in (found[2], found[4], found[10])]
    assert [(of and of[0][0], sideways) for of, sideways in found.values()] == [
        ("table", False),
        ("table*", False),
        ("table*", False),
        ([], True),
    ]
    assert widths[0] <= 243 < widths[1] <= 505 < widths[2] <= 505 / latex._SMALLEST


@pytest.mark.parametrize("notes, place", [(0, "inside"), (10, "inside"), (200, "below")])
def test_footnotes_that_do_not_fit_on_the_page_of_their_table_stand_below_it(store, tmp_path, notes, place):
    store.add("cifar10 label-2", "fedavg", [0.5] * 3).report["notes"] = [
        "A long note of the author on this table."
    ] * notes
    text = store.render(format="tex")
    show = r"\typeout{<\ifx\tablebelow\relax inside\else below\fi>}\endgroup"
    said = compiled(text.replace(r"\endgroup", show), tmp_path)
    assert f"<{place}>" in said and "Float too large" not in said


def test_tables_fit_the_width_that_is_asked_for(store):
    for number in range(6):
        store.add("cifar10 label-2", f"a-method-{number}", [0.5] * 3)
    own = store.render(format="tex")
    asked = store.render(format="tex", widths=TEMPLATES["icml"])
    assert r"\def\tablelimit{\columnwidth}" in own and r"\def\tablelimit{\textwidth}" in own
    assert asked == own.replace(r"{\columnwidth}", "{3.25in}").replace(
        r"\def\tablelimit{\textwidth}", r"\def\tablelimit{6.75in}"
    )


def test_a_table_of_many_rows_goes_on_in_further_floats_of_the_same_number(store, tmp_path):
    store.reproduces = None
    for number in range(60):
        store.add(f"cifar10 label-{number + 1}", "fedavg", [0.5] * 2 + [None])
    store.report["notes"] = ["Of the author."]
    text = store.render(format="tex", style="paper")
    first, last = text.split("% Needs")[1:]
    assert [part.count("50.0") for part in (first, last)] == [45, 15]
    assert r"\label" in first and r"\label" not in last and r"\addtocounter{table}{-1}" in last
    assert "(continued)}" in last and "2/3 seeds." in last and "2/3 seeds." not in first
    assert "Float too large" not in compiled(text, tmp_path, "lncs")


def test_rules_between_rows_take_room_in_a_float(store, tmp_path):
    store.reproduces = None
    for number in range(60):
        store.add(f"cifar10 label-{number + 1}", "fedavg", [0.5] * 3)
    store.report["rows"] = ["partition", "dataset"]
    text = store.render(format="tex", style="paper")
    assert [part.count("50.0") for part in text.split("% Needs")[1:]] == [28, 28, 4]
    assert "Float too large" not in compiled(text, tmp_path, "lncs")


@pytest.fixture
def partial(store):
    """A table with a number of two seeds, and a cell without any."""
    store.add("cifar10 label-2", "fedavg", [0.536, 0.532, None]).add("cifar10 label-2", "moon", [0.5, 0.5, 0.5])
    store.add("cifar10 label-3", "fedavg", ["diverged"] * 3).add("cifar10 label-3", "moon", [0.6] * 3, choice={"mu": 5})
    store.reproduces |= {"own": ["fedconcat"]}
    store.report |= {"standings": True, "notes": ["Of the author."]}
    return store


def test_nothing_but_the_published_layout_is_there_and_limits_of_numbers_are_marked(partial):
    text = partial.render(style="paper")
    assert [re.sub(" +", " ", line) for line in text.splitlines() if line] == [
        "# Small table",
        "| Dataset | Partition | FedAvg | MOON |",
        *(line for line in text.splitlines() if line.startswith("|:")),
        "| CIFAR-10 | #C = 2 | 53.4%±0.2%† | 50.0%±0.0% |",
        "| | #C = 3 | – | 60.0%±0.0% |",
        "Accuracy in percent on the test split, at the last round; mean±std (population) over 2 to 3 seeds (of 0, 1, 2).",
        "- †: 2/3 seeds.",
        "- –: diverged.",
    ]


def test_own_methods_of_no_paper_and_no_printed_cell_are_no_crash(store):
    store.reproduces, store.report["printed"] = None, {"bold": "own"}
    store.add("cifar10 label-2", "fedavg", [0.5] * 3).add("cifar10 label-2", "moon", [0.6] * 3)
    text = store.render(style="paper")
    assert "**60.0±0.0**" in text and "**50" not in text
    store.report["printed"] = {"without": {"algorithm": ["fedavg", "moon"]}}
    with pytest.raises(ValueError, match="small_table has no cell that its published table prints; run others, or use"):
        store.render(style="paper")


@pytest.mark.parametrize(
    "printed",
    [
        {"without": ["algorithm"]},
        {"without": {"algorithm": 5}},
        {"caption": 5},
        {"bold": ["x"]},
        {"rows": "dataset"},
        3,
    ],
)
def test_a_stored_grid_with_another_printed_table_is_damaged(store, printed):
    store.report["printed"] = printed
    store.add("cifar10 label-2", "fedavg", [0.5])
    assert Store(store.save()).grid("small_table@paper") is None


@pytest.mark.parametrize("printed", [{"rows": ["nope"]}, {"columns": "nope"}, {"without": {"nope": ["x"]}}])
def test_a_stored_grid_whose_published_table_has_other_axes_is_refused_in_this_style_alone(store, printed):
    store.report["printed"] = printed
    store.add("cifar10 label-2", "fedavg", [0.5])
    assert "FedAvg" in store.render()
    with pytest.raises(
        ValueError, match="small_table is stored with a published layout of nope, but its report has dataset"
    ):
        store.render(style="paper")


def test_the_published_caption_is_said_at_the_papers_budget_alone(partial, store):
    store.report["printed"] = {"caption": "Same cost."}
    assert "(of 0, 1, 2). Same cost." in store.render(style="paper")
    store.budget = "small"
    assert "Same cost." not in store.render(style="paper")


def test_files_of_the_paper_style_have_names_of_their_own_and_no_csv(partial):
    paths = partial.grid_report().write(style="paper")
    assert {format: path.name for format, path in paths.items()} == {
        format: f"small_table@paper-paper.{format}" for format in ("md", "tex", "html")
    }
    page = paths["html"].read_text()
    assert "53.4%±0.2%†" in page and "inside" not in page.partition('id="curves"')[0].partition("<main>")[2]
    with pytest.raises(ValueError, match="A CSV has ids and numbers, whatever the style"):
        partial.render(style="paper", format="csv")


@pytest.mark.parametrize("style", ["check", "paper"])
def test_footnotes_stand_inside_the_float_below_it_or_nowhere(partial, style):
    texts = {notes: partial.render(format="tex", style=style, notes=notes) for notes in api.NOTES}
    for notes, text in texts.items():
        inside, _, below = text.partition(r"\endgroup")
        note = "2/3 seeds." if style == "paper" else "Of the author."
        found = [any(note in line and line[0] != "%" for line in part.splitlines() if line) for part in (inside, below)]
        assert found == {"inside": [True, False], "below": [False, True], "none": [False, False]}[notes]
    assert (
        texts["inside"].count(r"\parbox") == texts["inside"].count(r"\def\tableremarks") > 0
        and r"\parbox" not in texts["below"]
    )


def test_footnotes_below_a_float_are_a_paragraph_that_names_its_table(partial):
    text = partial.render(format="tex", style="paper", notes="below")
    assert text.endswith(
        "\n\\endgroup\n\n{\\footnotesize\\sloppy\\noindent Notes to Table~\\ref{tab:small_table-paper}:\n"
        "$\\dagger$: 2/3 seeds.\n–: diverged.\n\\par}\n\n"
    )


def test_without_footnotes_their_sentences_are_comments_in_latex(partial):
    text = partial.render(format="tex", style="paper", notes="none")
    assert text.endswith("\n\\endgroup\n% $\\dagger$: 2/3 seeds.\n% –: diverged.\n")
    assert "- †: 2/3 seeds." in partial.render(style="paper", notes="none")


def test_each_set_of_limits_has_a_mark_of_its_own(store):
    """Here five, and dashes with different reasons."""
    store.add("cifar10 label-2", "fedavg", [0.5, 0.5, None]).add(
        "cifar10 label-2", "moon", [0.5] * 3, substitute="mnist"
    )
    store.add("cifar10 label-3", "fedavg", [0.5, None, None]).add("cifar10 label-3", "moon", [None] * 3)
    store.add("svhn label-2", "fedavg", ["diverged"] * 3).add(
        "svhn label-2", "moon", [0.5] * 2 + [None], substitute="mnist"
    )
    store.add("svhn label-3", "fedavg", [0.5] * 3).add("svhn label-3", "moon", [0.5] * 2 + [None])
    lines = paper_of(store)
    cells = [[re.sub(r"[\d.%±* ]", "", cell) for cell in line.split("|")[3:5]] for line in lines[2:6]]
    assert cells == [["†", "‡"], ["§", "–¶"], ["–††", "‡‡"], ["", "†"]]
    assert lines[7:] == [
        "- †: 2/3 seeds.",
        "- ‡: on MNIST.",
        "- §: 1/3 seeds.",
        "- ¶: 0/3 seeds.",
        "- ††: diverged.",
        "- ‡‡: 2/3 seeds; on MNIST.",
    ]
    tex = store.render(format="tex", style="paper")
    for mark in (
        r"0.0\%$\ddagger$ ",
        r"\S{} &",
        r"–\P{} ",
        r"–$\dagger$$\dagger$ &",
        r"$\ddagger$$\ddagger$: 2/3 seeds; on",
    ):
        assert mark in tex


@pytest.mark.parametrize(
    ("source", "reproduces"), [("", None), ("mine.yaml", None), ("mine.yaml", {"paper": "fedconcat", "table": "1"})]
)
def test_captions_and_footnotes_of_a_grid_of_ones_own_name_model_clients_and_rounds(store, source, reproduces):
    store.source, store.reproduces = source, reproduces
    store.add("cifar10 none", "centralized", [0.7] * 3, config={"rounds": 7})
    store.add("cifar10 label-2", "fedavg", [0.5] * 3).add("cifar10 label-2", "moon", [0.5] * 3)
    said = (
        re.escape(f"{Names().value('model', store.cells[-1]['config']['model']).plain}, 40 clients, ") + r"\d+ rounds; "
    )
    assert re.match(said, paper_of(store)[-1], flags=re.IGNORECASE)
    check = store.render()
    assert re.search(rf"; mean±std .* \(0, 1, 2\); {said}budget paper\.\n", check)
    store.add("cifar10 label-2", "fedprox", [0.5] * 3, config={"rounds": 3})
    assert re.search(r" 40 clients, \d+ rounds \(FedProx 3\); ", paper_of(store)[-1])
    store.add("cifar10 label-3", "fedprox", [0.5] * 3, config={"rounds": 5})
    assert " 40 clients; " in paper_of(store)[-1] and "rounds" not in paper_of(store)[-1].replace("last round", "")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("paper_table1@paper-paper", "paper_table1-paper"),
        ("paper_table1@small-best-paper", "paper_table1-small-best-paper"),
        ("mine@smoke+rounds=5", "mine-smoke-0b35"),
        ("mine@paper+search_seeds=0+searcher=random+tuned=validation", "mine-f1ad"),
        (f"{'long' * 20}@paper", f"{'long' * 10}-5aa1"),
    ],
)
def test_labels_are_short(name, label):
    assert latex._label(name) == f"tab:{label}"


def test_every_float_has_a_label(partial):
    text = partial.render(format="tex", style="paper")
    assert text.count(r"\begin{\tablefloat}") == 1 and r"\label{tab:small_table-paper}" in text
    labels = re.findall(r"\\label{(.*)}", partial.render(format="tex"))
    assert labels == ["tab:small_table"] + [f"tab:small_table-{number}" for number in range(2, len(labels) + 1)]


def test_a_table_of_another_grid_has_the_best_in_bold_and_one_decimal(store):
    store.reproduces = store.verdict = None
    store.add("cifar10 label-2", "fedavg", [0.5] * 3).add("cifar10 label-2", "moon", [0.6] * 3)
    text = store.render(style="paper")
    assert "| 50.0±0.0 " in text and "| **60.0±0.0** |" in text


def paper_of(store) -> list[str]:
    """Lines of the table in the paper's style, without spaces around its cells, and what stands below it."""
    text = store.render(style="paper")
    return [re.sub(" +", " ", line) for line in text.splitlines() if line and not line.startswith("|:")]


def test_a_grid_may_print_what_does_not_differ_significantly_in_italics(store):
    store.reproduces = None
    scores = {"fedavg": [0.4, 0.41, 0.4], "fedprox": [0.5, 0.7, 0.6], "moon": [0.61, 0.62, 0.64]}
    for name, accuracies in scores.items():
        store.add("cifar10 label-2", name, accuracies)
    plain = "| CIFAR-10 | #C = 2 | 40.3±0.5 | 60.0±8.2 | **62.3±1.2** |"
    said = (
        "italics: not significantly different from the best of the row (paired t-test over 3 seeds, Holm's correction"
    )
    table = paper_of(store)
    assert table[2] == plain and "italics" not in table[-1]
    store.report |= {"printed": {"italics": True}}
    table = paper_of(store)
    assert table[2] == plain.replace("60.0±8.2", "_60.0±8.2_") and said in table[-1]


def test_the_best_is_found_with_the_digits_that_the_paper_prints_and_its_facts_say_no_std(store):
    store.reproduces = {"paper": "fedcat", "table": 1}
    store.add("cifar10 label-2", "fedavg", [0.5321] * 3).add("cifar10 label-2", "moon", [0.5324] * 3)
    store.add("svhn label-2", "fedavg", [0.53241] * 3).add("svhn label-2", "moon", [0.53239] * 3)
    assert paper_of(store)[2:] == [
        "| CIFAR-10 | #C = 2 | 53.21 | **53.24** |",
        "| SVHN | #C = 2 | **53.24** | **53.24** |",
        "Accuracy in percent on the test split, at the last round; mean over 3 seeds (0, 1, 2).",
    ]
    check = store.render()
    assert "**53.2±0.0** " in check.splitlines()[4], "which prints one digit"


def test_own_methods_that_print_like_the_best_are_bold(store):
    store.reproduces |= {"own": ["moon"]}
    store.add("cifar10 label-2", "fedavg", [0.5314] * 3).add("cifar10 label-2", "moon", [0.5312] * 3)
    assert paper_of(store)[2] == "| CIFAR-10 | #C = 2 | 53.1%±0.0% | **53.1%±0.0%** |"


@pytest.mark.parametrize("paper", ["fedconcat", "fedvls"])
def test_numbers_of_fewer_seeds_than_others_have_a_dagger(store, paper):
    store.reproduces = {"paper": paper, "table": 1}
    store.add("cifar10 label-2", "fedavg", [0.5] * 3).add("cifar10 label-2", "moon", [0.4])
    store.add("cifar10 label-3", "fedavg", [0.5, None, None]).add("cifar10 label-3", "moon", [0.4] * 2)
    spread, sign, mean = ("±0.0%", "%", "mean±std (population)") if paper == "fedconcat" else ("", "", "mean")
    digits = "" if sign else "0"
    lines = paper_of(store)
    assert [line.split(" | ")[2:] for line in lines[2:4]] == [
        [
            f"50.0{digits}{sign}{spread}",
            f"40.0{digits}{sign}† |",
        ],
        [f"50.0{digits}{sign}‡", f"40.0{digits}{sign}{spread}§ |"],
    ]
    assert f"; {mean} over 1 to 3 seeds (of 0, 1, 2)." in lines[4]
    assert lines[5:] == ["- †: 1 seed.", "- ‡: 1/3 seeds.", "- §: 2 seeds."]


def test_one_seed_of_a_paper_without_stds_says_no_more(store):
    store.reproduces = {"paper": "fedcat", "table": 1}
    store.add("cifar10 label-2", "fedavg", [0.5])
    assert paper_of(store)[-1].endswith("at the last round; 1 seed (0).")


def test_the_facts_say_where_hyper_parameters_were_chosen(store):
    for mu, score in ((1, 0.5), (5, 0.6)):
        store.add("cifar10 label-2", "moon", [score] * 3, choice={"mu": mu})
    store.add("cifar10 label-2", "fedavg", [0.5] * 3)
    chosen = "(0, 1, 2); hyper-parameters chosen on the test split, as published."
    assert paper_of(store)[-1].endswith(chosen)
    store.reproduces = store.verdict = None
    assert paper_of(store)[-1].endswith(chosen.replace(", as published", ""))


def test_a_caption_says_nothing_twice(store):
    store.title, store.report["also"] = "Test accuracy of two methods", ["best"]
    store.add("cifar10 label-2", "fedavg", [0.5] * 3)
    lines = paper_of(store)
    assert lines[0] == "# Test accuracy of two methods"
    assert lines[-1] == "In percent, at the last round; mean±std (population) over 3 seeds (0, 1, 2)."
    best = store.render(value="best", style="paper")
    assert "\nAccuracy in percent on the test split, at the best round, found on the split itself; " in best


def test_several_metrics_stand_side_by_side_and_costs_have_no_percent_sign(store):
    store.report |= {"metrics": ["accuracy", "rounds_to_0.4"]}
    store.add("cifar10 label-2", "fedavg", [0.5, 0.52, 0.51])
    text = store.render(style="paper")
    assert "FedAvg accuracy" in text and "FedAvg rounds to 40 %" in text
    assert re.search(r"\| 51\.0%±0\.8% +\| 4 ", text), "no std of zero"
    assert (
        "\nAccuracy in percent on the test split, at the last round; rounds to 40 %: the first evaluated round with an "
        "accuracy of at least 40 % (of the shared model; where clients have test data of their own, the mean on these); mean"
    ) in text


def test_costs_have_four_digits_at_most_and_the_bold_of_the_paper_and_a_target_not_reached_has_its_mark(store):
    store.reproduces, store.report["metrics"] = {"paper": "fedcat", "table": 1}, ["mb", "rounds_to_0.4"]
    store.add("cifar10 label-2", "fedavg", [0.8, 0.5, 0.3]).add("cifar10 label-2", "moon", [0.3, None, None])
    for number, megabytes in enumerate((1234.561, 1234.561, 1234.561, 1234.563)):
        path = store.folder / "runs" / store.cells[number]["run"] / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"bytes_per_client": 1e6 * megabytes}))
    lines = paper_of(store)
    assert lines[2] == "| CIFAR-10 | #C = 2 | 1235 | 3 (2 of 3 seeds) | 1235† | not reached† |"
    assert lines[3].startswith(
        "On the test split; MB per client: sent and received per client in a whole run, in MB (10^6 bytes)"
    )
    assert lines[4:] == ["- †: 1/3 seeds."]


def test_the_best_of_costs_is_found_with_the_digits_that_are_printed(store):
    store.reproduces, store.report["metrics"] = None, ["mb"]
    store.add("cifar10 label-2", "fedavg", [0.5]).add("cifar10 label-2", "moon", [0.5])
    for cell, megabytes in zip(store.cells, (12.342, 12.338), strict=True):
        path = store.folder / "runs" / cell["run"] / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"bytes_per_client": 1e6 * megabytes}))
    assert paper_of(store)[2] == "| CIFAR-10 | #C = 2 | **12.3** | **12.3** |"


def test_the_caption_says_what_bold_means_where_it_is_not_the_best(store):
    store.reproduces |= {"own": ["fedconcat", "fedconcat-id"]}
    store.add("cifar10 label-2", "fedavg", [0.5] * 3).add("cifar10 label-2", "fedconcat", [0.6] * 3)
    assert paper_of(store)[-1].endswith(
        "(0, 1, 2); bold: FedConcat where not behind the best other method, else that one."
    )
    store.reproduces = {"paper": "fedcat", "table": 1, "own": ["fedconcat"]}
    assert "bold" not in paper_of(store)[-1]


def test_the_caption_has_no_label_of_a_budget(store):
    store.add("cifar10 label-2", "fedavg", [0.5] * 3)
    saved = store.save() / "grids" / "small_table@paper.json"
    grid = json.loads(saved.read_text())
    for budget, overrides, said in (
        ("small", {}, "; budget small."),
        ("small+local_epochs=2+mu=5", {"local_epochs": 2, "mu": 5}, "; budget small with local epochs=2, μ=5."),
        ("paper+model=mlp", {"model": "mlp"}, "; MLP."),
        ("paper+searcher=random+tuned=validation", {}, "(0, 1, 2)."),
    ):
        named = grid | {"budget": budget, "overrides": overrides}
        (store.folder / "grids" / f"small_table@{budget}.json").write_text(json.dumps(named))
        assert api.GridReport(store.folder, "small_table", budget).render(style="paper").rstrip().endswith(said)


def test_a_budget_with_a_name_that_is_cut_says_what_it_overrides(store):
    store.add("cifar10 label-2", "fedavg", [0.5] * 3)
    saved = store.save() / "grids" / "small_table@paper.json"
    budget, overrides = "small+lo~0123abcd", {"mu": 5, "local_epochs": 2}
    named = json.loads(saved.read_text()) | {"budget": budget, "overrides": overrides}
    (store.folder / "grids" / f"small_table@{budget}.json").write_text(json.dumps(named))
    assert f"; budget {budget} (local_epochs=2, mu=5)." in api.GridReport(store.folder, "small_table", budget).render()


def test_rows_that_the_grid_joins_have_one_label_in_the_order_of_their_names(store):
    store.report |= {"rows": ["dataset", "algorithm", "wrapper"], "columns": "partition"}
    order = {"moon none": "MOON itself", "fedavg none": "FedAvg itself"}
    store.report |= {"printed": {"rows": ["algorithm wrapper"], "names": {"algorithm wrapper": order}}}
    for method in ("fedavg", "moon"):
        for wrapper in ("none", "ccvr"):
            around = {"algorithm": {"name": wrapper, "base": {"name": method}}} if wrapper != "none" else {}
            store.add("cifar10 label-2", method, [0.5], wrapper=wrapper, config=around)
    text = store.render(style="paper")
    labels = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("|")]
    assert labels[0] == "Method" and labels[2:] == ["MOON itself", "FedAvg itself", "FedAvg + CCVR", "MOON + CCVR"]


def test_cells_that_the_published_layout_cannot_tell_apart_are_refused(store):
    store.report |= {"printed": {"rows": ["partition"]}}
    store.add("cifar10 label-2", "fedavg", [0.5]).add("svhn label-2", "fedavg", [0.6])
    with pytest.raises(
        ValueError, match=r"published layout \(partition, algorithm\) cannot tell apart; use the style check"
    ):
        store.render(style="paper")


def test_the_command_prints_either_style(partial):
    command = ["report", "--results-dir", str(partial.save()), "--print"]
    _, text = call_bench(*command, "--style", "paper")
    assert "53.4%±0.2%†" in text and "Mean ranks" not in text
    for options, sentence in (
        (["--style", "papre"], "Unknown value of --style 'papre'. Did you mean 'paper'?"),
        (["--notes", "outside"], "Unknown value of --notes 'outside'."),
        (["--notes", "below", "--format", "md"], "--notes below is for LaTeX only; add tex to --format"),
        (["--style", "paper", "--format", "md,csv"], "leave csv out of --format"),
    ):
        code, text = call_bench(*command, *options)
        assert code and sentence in text


AXES = {"partition": ["label-2", "dir-0.1"], "algorithm": ["fedavg", "moon"], "seed": [0]}


def grid_with(**layout):
    settings = {"dataset": "digits", "model": "mlp", "clients": 4}
    return make_grid("mine", {"axes": AXES, "settings": settings, "report": layout})


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        ({"names": {"partitoin": {"dir-0.1": "x"}}}, "Unknown axis in names 'partitoin'. Did you mean 'partition'?"),
        (
            {"names": {"partition": {"dir-1": "x"}}},
            "Unknown value of partition in names 'dir-1'. Did you mean 'dir-0.1'?",
        ),
        (
            {"names": {"algorithm": {"fedavg": "A", "moon": "A"}}},
            "names call two values of algorithm 'A'; give each a name of its own.",
        ),
        (
            {"printed": {"rows": ["dataset"]}},
            "printed must show the rows and columns of the report, each once (dataset, partition, algorithm; those of one "
            "value may be left out), but got dataset, algorithm.",
        ),
        (
            {"names": {"metric": {"accuracy": "x"}}},
            "names has no axis 'metric'; names of metrics are of the published table: names in printed.",
        ),
        ({"printed": {"names": {"wrapper": {"ccvr": "x"}}}}, "Unknown axis in names 'wrapper'."),
        ({"printed": {"without": {"seed": [0]}}}, "Unknown axis in without 'seed'."),
        (
            {"printed": {"without": {"algorithm": ["mon"]}}},
            "Unknown value of algorithm in without 'mon'. Did you mean 'moon'?",
        ),
        (
            {"printed": {"without": {"algorithm": ["fedavg", "moon"]}}},
            "without leaves out every algorithm, so that nothing is printed; keep one.",
        ),
        ({"printed": {"bold": "all"}}, "report.printed.bold"),
        ({"printed": {"row": ["dataset"]}}, "report.printed: Unknown key 'row'. Did you mean 'rows'?"),
    ],
)
def test_names_of_what_there_is_not_are_refused(layout, sentence):
    with pytest.raises(ConfigError) as refused:
        grid_with(**layout)
    assert sentence in str(refused.value)


def test_numbers_as_ids_and_an_axis_of_one_value_left_out_are_taken():
    grid = grid_with(names={"dataset": {"digits": "My digits"}}, printed={"rows": ["partition"]})
    assert grid.report.names == {"dataset": {"digits": "My digits"}} and grid.report.printed.rows == ["partition"]
    settings = {"dataset": "digits", "partition": "iid", "model": "mlp"}
    numbers = {"axes": {"clients": [4, 8], "algorithm": ["fedavg"], "seed": [0]}, "settings": settings}
    layout = {"rows": ["clients"], "names": {"clients": {4: "few", 8: "many"}}}
    assert make_grid("mine", numbers | {"report": layout}).report.names == {"clients": {"4": "few", "8": "many"}}


def test_a_grid_that_extends_another_has_names_of_its_own_values_and_another_published_table():
    figure = load_grid("fedcat_figure4").report
    assert figure.names == {"partition": {"dir-1": "α = 1.0"}}
    assert load_grid("ccvr_table2").report.printed and load_grid("ccvr_figure6").report.printed is None


if __name__ == "__main__":
    for name in TABLES:
        (GOLDEN / f"{name}.tex").write_text(latex.render(published(name)), encoding="utf-8")
