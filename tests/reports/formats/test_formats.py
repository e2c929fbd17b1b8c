"""Whole files: Markdown against a golden text, LaTeX through pdflatex, CSV there and back."""

import json
import re
import subprocess
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from reports import api
from reports.formats import csv, latex
from reports.tables.latex_text import escape
from reports.tables.layout import Cell, Row, Table
from tests.support.chosen import choice
from tests.support.processes import call_bench, imported_after
from tests.support.tools import path_of


@pytest.fixture
def small_table(store):
    """One cell of every kind; hand-made so that each number can be checked by eye."""
    store.add("cifar10 none", "centralized", [0.702] * 3)
    store.add("cifar10 label-2", "fedavg", [0.53, 0.53, 0.536])
    store.add("cifar10 label-2", "moon", [0.60] * 3, choice={"mu": 1})
    store.add("cifar10 label-2", "moon", [0.59] * 3, choice={"mu": 5})
    store.add("cifar10 dir-0.1", "fedavg", [0.51, None, 0.55])
    store.add("cifar10 dir-0.1", "moon", ["diverged"] * 3, choice={"mu": 1})
    store.add("cifar10 dir-0.1", "moon", ["diverged"] * 3, choice={"mu": 5})
    store.add("svhn label-2", "fedavg", [None] * 3, missing="no data: svhn")
    store.add("fmnist label-2", "moon", [0.5] * 3, substitute="cifar10", versions={"torch": "2.16.0"})
    store.row_order = [
        ["cifar10", "label-2"],
        ["cifar10", "dir-0.1"],
        ["svhn", "label-2"],
        ["fmnist", "label-2"],
    ]
    store.column_order = ["fedavg", "moon", "centralized"]
    return store


def test_the_markdown_of_a_small_table_is_this_file(small_table):
    golden = Path(__file__).with_name("small_table.md").read_text(encoding="utf-8")
    assert small_table.render() == golden


def test_write_saves_every_format_and_says_where(small_table):
    folder = small_table.save()
    paths = small_table.grid_report().write()
    formats = ("md", "tex", "csv", "html")
    assert paths == {format: folder / "reports" / f"small_table@paper.{format}" for format in formats}
    for format, path in paths.items():
        assert path.read_text(encoding="utf-8") == small_table.render(format=format)


def test_the_command_writes_the_formats_that_it_is_asked_for(small_table):
    folder = small_table.save()
    asked = ["report", "--results-dir", str(folder), "--format"]
    code, text = call_bench(*asked, "md, csv")
    assert code == 0 and "| CIFAR-10" in text
    assert sorted(path.suffix for path in (folder / "reports").iterdir()) == [".csv", ".md"]
    code, text = call_bench(*asked, "md,htm")
    assert code and "Unknown value of --format 'htm'. Did you mean 'html'?" in text


def test_another_value_gets_files_of_its_own(small_table):
    last = small_table.grid_report().write(value="last", formats=("md",))
    best = small_table.grid_report().write(value="best", formats=("md",))
    assert [path.name for path in (*last.values(), *best.values())] == [
        "small_table@paper.md",
        "small_table@paper-best.md",
    ]


def test_accuracies_of_further_rounds_stand_below_without_a_verdict(store):
    store.report |= {"value": "best", "also": ["last", "last10"]}
    store.add("cifar10 label-2", "fedavg", [0.516, 0.516, 0.516]).add("cifar10 label-2", "moon", [0.5] * 3)
    text = store.render()
    main, last, last10 = re.split(r"^## .*", text, flags=re.MULTILINE)
    assert re.findall(r"^## .*", text, flags=re.MULTILINE) == [
        "## Accuracy, at the last round",
        "## Accuracy, mean of the last 10 evaluated rounds",
    ]
    assert "**53.6±0.0** (53.6±0.8, +0.0, inside)" in main
    assert "**51.6±0.0** (53.6±0.8, -2.0)" in last and "**50.6±0.0** (53.6±0.8, -3.0)" in last10
    assert "Accuracy in percent on the test split, at the best round, found on the split itself; mean±std" in text
    assert (
        "- Further tables show other rounds of the same cells: at the last round; mean of the last 10 evaluated rounds; they "
        "carry no verdict.\n"
    ) in text
    lines = pd.read_csv(StringIO(store.render(format="csv")), dtype=str)
    fedavg = lines[lines["algorithm"] == "fedavg"]
    assert [*zip(fedavg["value"], fedavg["mean"], strict=True)] == [
        ("best", "53.6"),
        ("last", "51.6"),
        ("last10", "50.6"),
    ]
    assert fedavg["verdict"].fillna("").tolist() == ["inside", "", ""]
    latex = store.render(format="tex")
    captions = re.findall(r"\\caption{(.*)}", latex)
    assert captions == [
        "Small table, at the best round, found on the split itself",
        "Accuracy, at the last round",
        "Accuracy, mean of the last 10 evaluated rounds",
    ]
    assert latex.count("Further tables show other rounds") == 1
    asked = store.render(value="last")
    assert "51.6" in asked and "##" not in asked and "Further" not in asked


def test_a_single_seed_has_the_std_of_its_last_rounds_where_these_are_shown_below(store):
    store.report |= {"also": ["last10"]}
    store.reproduces = None
    text = store.add("cifar10 label-2", "fedavg", [0.5]).render()
    assert "| 50.0 " in text and "| 49.0±0.4 " in text
    assert (
        "other rounds of the same cells: mean of the last 10 evaluated rounds (1 seed: std of these rounds).\n" in text
    )


def test_a_mean_of_one_evaluated_round_is_called_so_and_has_no_std(store):
    store.report |= {"value": "last10"}
    store.add("cifar10 label-2", "fedavg", [0.5]).add("cifar10 label-2", "ccvr", [0.6])
    folder, run = store.save(), store.cells[1]["run"]
    path = folder / "runs" / run / "record.json"
    record = json.loads(path.read_text())
    record["summary"]["last10_std"] = {"method/drift": 0.1}  # of rounds without an evaluation, too
    path.write_text(json.dumps(record))
    sentence = "- CCVR: evaluated at one round only, so the mean of the last 10 is that of this round.\n"
    text = api.GridReport(folder, "small_table", "paper").render()
    assert "| 49.0±0.4 " in text and "| **59.0** " in text and sentence in text
    del record["summary"]["last10_std"]  # of an early version, which does not say it
    path.write_text(json.dumps(record))
    assert sentence not in api.GridReport(folder, "small_table", "paper").render()
    path.write_text(json.dumps(record | {"summary": record["summary"] | {"last10_std": {}}}))
    assert sentence not in api.GridReport(folder, "small_table", "paper").render(value="last")


def test_per_client_models_get_a_section_of_their_own(small_table):
    small_table.add("cifar10 label-2", "local", [0.3] * 3, personal=True)
    text = small_table.render()
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [section.split("\n")[0] for section in sections] == [
        "accuracy",
        "global accuracy",
        "local accuracy",
        "Chosen hyper-parameters (accuracy)",
    ]
    assert ["Local" in section.split("|:")[0] for section in sections[:2]] == [False, True]
    assert "30.0±0.0" in sections[1] and "40.0±0.0" in sections[2]


def test_no_cell_of_a_csv_is_a_formula_of_a_spreadsheet(store):
    """A stored grid may come from anybody, and a name in it may be anything."""
    store.reproduces = None
    store.add("=1+1 label-2", "fedavg", [0.5])
    store.add("=1+1 label-2", "fedprox", [0.25], choice={"mu": -1})
    lines = pd.read_csv(StringIO(store.render(format="csv")), dtype=str)
    assert set(lines["dataset"]) == {"'=1+1"} and "mu=-1" in set(lines["choice"])


def test_csv_reads_back_as_the_same_numbers(small_table):
    text = small_table.render(format="csv")
    lines = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    assert lines.to_csv(index=False, lineterminator="\n") == text
    cells = lines.set_index(["dataset", "partition", "algorithm"])
    fedavg = cells.loc["cifar10", "label-2", "fedavg"]
    assert (fedavg["mean"], fedavg["std"], fedavg["difference"]) == ("53.2", "0.282843", "-0.4")
    assert (fedavg["published_mean"], fedavg["published_std"], fedavg["verdict"]) == ("53.6", "0.8", "inside")
    assert cells.loc["cifar10", "label-2", "moon"][["choice", "best"]].tolist() == ["mu=1", "True"]
    assert cells.loc["svhn", "label-2", "fedavg"][["mean", "missing"]].tolist() == ["", "no data: svhn"]
    assert cells.loc["fmnist", "label-2", "moon"][["substitute", "published_mean"]].tolist() == [
        "cifar10",
        "",
    ]


def test_a_csv_tells_the_columns_of_every_axis_apart(store):
    store.reproduces, store.report["rows"], store.report["columns"] = None, ["partition", "algorithm"], "mu"
    for mu in (0.1, 1.0):
        store.add("cifar10 label-2", "fedprox", [0.5], config={"algorithm": {"name": "fedprox", "mu": mu}})
    text = store.render(format="csv")
    assert pd.read_csv(StringIO(text))["mu"].tolist() == [0.1, 1.0]


def test_small_numbers_of_a_metric_that_is_no_share_are_not_cut(store):
    store.reproduces, store.report["metric"] = None, "method/drift"
    store.add("cifar10 label-2", "fedavg", [0.5, 0.5])
    for cell, drift in zip(store.cells, (2e-7, 4e-7), strict=True):
        path = store.folder / "runs" / cell["run"] / "record.json"
        rounds = path.with_name("rounds.jsonl")
        rounds.write_text(rounds.read_text().replace("}\n", f', "metrics": {{"method/drift": {drift}}}}}\n'))
        record = json.loads(path.read_text())
        for value in ("last", "best", "last10"):
            record["summary"][value]["method/drift"] = drift
        path.write_text(json.dumps(record))
    lines = pd.read_csv(StringIO(store.render(format="csv")))
    assert lines[["mean", "std"]].values.tolist()[0] == [3e-7, 1e-7]
    assert 'data-value="3e-07"' in store.render(format="html")


PAPER = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n%s\\end{document}\n"
SPECIAL = r"a&b_50%#$x{y}~^\z<|>`*"


def test_names_with_special_characters_are_escaped_in_markdown(store):
    store.reproduces = None
    store.title = "100 % | of `it`"
    store.report |= {"notes": ["First *run* `python -m bench check a|b`, not `.", "![a](https://x.y) [0, 1] (b)"]}
    text = store.add(f"{SPECIAL} label-2", "fedavg", [0.5]).render()
    assert "# 100 % \\| of \\`it\\`\n" in text
    assert "- First \\*run\\* `python -m bench check a|b`, not \\`.\n" in text
    assert r"| a&b_50%#$x{y}~^\\z\<\|>\`\* " in text


def test_what_a_search_has_chosen_is_escaped_in_markdown(store):
    store.reproduces = None
    store.add("cifar10 label-2", "fedprox", [0.5], tuned=choice(1) | {"hparams": {"kind": "a|<b>"}})
    assert r'| kind="a\|\<b>" ' in store.render()


def test_names_with_special_characters_are_escaped_in_latex(store):
    store.reproduces = None
    text = store.add(f"{SPECIAL} label-2", "fed_avg", [0.5]).render(format="tex")
    assert (
        r"a\&b\_50\%\#\$x\{y\}\textasciitilde{}\textasciicircum{}\textbackslash{}z"
        r"\textless{}\textbar{}\textgreater{}\textasciigrave{}* & $\#C=2$ & 50.0 \\"
    ) in text
    assert r"Dataset & Partition & fed\_avg \\" in text


def test_latex_groups_rows_by_dataset_and_puts_published_values_below(small_table):
    text = small_table.render(format="tex")
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0].strip().split("\n")
    assert body[:7] == [
        r"CIFAR-10 & $\#C=2$ & 53.2$\pm$0.3 & \textbf{60.0$\pm$0.0} & 70.2$\pm$0.0 \\",
        r" &  & {\scriptsize (53.6$\pm$0.8)} & {\scriptsize (53.4$\pm$1.3)} "
        r"& {\scriptsize (70.2$\pm$0.9)} \\",
        r" &  & {\scriptsize ($-$0.4, inside)} & {\scriptsize (+6.6, outside)} "
        r"& {\scriptsize (+0.0, inside)} \\",
        r"\addlinespace[2pt]",
        r" & $p_k \sim \mathrm{Dir}(0.1)$ & 53.0$\pm$2.0, 2/3 seeds & diverged &  \\",
        r" &  & {\scriptsize (53.0$\pm$1.0)} & {\scriptsize (53.1$\pm$3.5)} &  \\",
        r" &  & {\scriptsize (+0.0)} &  &  \\",
    ]
    assert body[7:11] == [
        r"\midrule",
        r"SVHN & $\#C=2$ & – &  &  \\",
        r" &  & {\scriptsize (82.8$\pm$0.5)} &  &  \\",
        r"\midrule",
    ]


def test_a_latex_cell_without_data_is_a_dash_with_one_footnote_per_table(small_table):
    small_table.report |= {"also": ["best"]}
    for dataset in ("femnist", "cifar100"):
        for algorithm in ("fedavg", "moon"):
            small_table.add(f"{dataset} label-2", algorithm, [None], missing=f"no data: {dataset}")
    *floats, chosen = re.split(r"\\endgroup", small_table.render(format="tex"))[:-1]
    assert [text.count("–: no data: SVHN, FEMNIST, CIFAR-100.") for text in (*floats, chosen)] == [1, 1, 0]
    assert all(text.count("no data") == 1 and text.count("& – ") == 5 for text in floats)
    assert "| no data: SVHN (82.8±0.5) " in small_table.render()


def test_a_latex_row_or_dash_is_not_read_as_a_command(store):
    store.reproduces = None
    store.add("[a] label-2", "fedavg", [0.5]).add("*b label-2", "fedavg", [0.5]).add("c--d label-2", "fedavg", [0.5])
    store.title = "Two\n\nparagraphs"
    text = store.render(format="tex")
    assert "\n{}[a] & " in text and "\n{}*b & " in text and "\nc-{}-d & " in text
    assert r"\caption{Two paragraphs}" in text


def test_latex_sets_letters_that_it_knows_and_names_the_others():
    assert escape("Zoë Łukasz, λ ≤ µ – α") == r"Zoë Łukasz, $\lambda$ $\leq$ µ – $\alpha$"
    assert escape("10^6 bytes, 2^-3; a^6, 1^2^3") == (
        r"$10^{6}$ bytes, $2^{-3}$; a\textasciicircum{}6, 1\textasciicircum{}2\textasciicircum{}3"
    )
    assert escape("a--b---c") == "a-{}-b-{}-{}-c", "no dashes"
    assert escape("中ą\u2028\x07") == "[U+4E2D][U+0105] [U+0007]"


def compile_latex(text, folder):
    """Runs pdflatex on a document, and fails with its log."""
    (folder / "paper.tex").write_text(text, encoding="utf-8")
    command = [path_of("pdflatex"), "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in done.stdout
    assert (folder / "paper.pdf").stat().st_size > 0


def specials_everywhere(store):
    """A store with special characters wherever a grid may put a text, and all parts of a table."""
    store.reproduces = None
    store.title = SPECIAL
    turning = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}  # which no stored grid may have
    codes = [*range(0xA0, 0x250), *range(0x370, 0x400), *({*range(0x2000, 0x2300)} - turning), 0x4E2D, 0x1F600]
    letters = "".join(map(chr, codes))
    store.report |= {"columns": "model", "standings": True, "notes": [f"[{SPECIAL}", SPECIAL * 3, letters]}
    store.report |= {"gains_over": {"model": SPECIAL}}
    for row in (f"[{SPECIAL} *{SPECIAL}", f"*{SPECIAL} [{SPECIAL}"):
        for model, scores in {SPECIAL: [0.5, 0.5, 0.5], f"[{SPECIAL}": [0.5, 0.6, 0.7]}.items():
            store.add(row, "fedavg", scores, model=model, choice={SPECIAL: SPECIAL}, data_note=SPECIAL)
    store.add("x y", "fedavg", ["diverged"], model=SPECIAL, versions={SPECIAL: SPECIAL})
    store.add("x z", "fedavg", [0.1], model=SPECIAL, substitute=SPECIAL)
    store.add("x w", "fedavg", [None], model=SPECIAL, missing=f"no data: {SPECIAL}")
    return store.save()


@pytest.mark.parametrize("format", ["tex", "standalone"])
def test_latex_compiles_with_special_characters_everywhere(store, tmp_path, format):
    text = api.GridReport(specials_everywhere(store), "small_table", "paper").render(format=format)
    assert r"\textit" in text and "Mean ranks" in text and "[+10.0" in text
    compile_latex(PAPER % text if format == "tex" else text, tmp_path)


def test_a_standalone_document_holds_the_same_tables(small_table):
    paths = small_table.grid_report().write(formats=("tex", api.STANDALONE))
    document = paths["standalone"].read_text(encoding="utf-8")
    assert paths["standalone"].name == "small_table@paper-standalone.tex"
    assert document.startswith(r"\documentclass{article}") and document.endswith("\\end{document}\n")
    tex = paths["tex"].read_text(encoding="utf-8")
    assert (
        tex.replace(r"{\columnwidth}", r"{\maxdimen}").replace(r"\tablelimit{\textwidth}", r"\tablelimit{\maxdimen}")
        in document
    )


def test_a_standalone_page_is_as_wide_as_a_table_of_long_caveats(store, tmp_path):
    store.reproduces = None
    for method in ("fedavg", "fedprox", "fednova", "scaffold", "moon", "ditto"):
        store.add("cifar10 label-2", method, [None], missing="no data: resnet18-f37072fd.pth")
        store.add("cifar10 label-3", method, [0.5])
    compile_latex(store.render(format=api.STANDALONE), tmp_path)
    assert "Overfull" not in (tmp_path / "paper.log").read_text(errors="replace")


def test_latex_compiles_with_nothing_but_the_packages_that_it_names(small_table, tmp_path):
    small_table.title = SPECIAL
    small_table.add(f"{SPECIAL} label-2", "local", [0.3] * 3, personal=True)
    text = small_table.render(format="tex")
    compile_latex(PAPER % text, tmp_path)


@pytest.mark.slow
def test_a_report_imports_neither_torch_nor_ray_and_the_package_alone_not_even_pandas(
    small_table, tmp_path, monkeypatch
):
    folder = str(small_table.save())
    heavy = {"torch", "ray", "pydantic", "pandas", "jinja2", "vl_convert"}
    monkeypatch.setenv("SKEWBENCH_CACHE", str(tmp_path / "cache"))
    assert not imported_after("import reports.api") & heavy
    elsewhere = str(tmp_path / "elsewhere")
    for formats, to, needed in (
        (("md", "tex", "csv"), None, {"pandas"}),
        (("html",), None, {"jinja2", "pandas", "pydantic", "vl_convert"}),
        (("html",), None, set()),  # nothing has changed
        (("html",), elsewhere, {"jinja2", "pandas", "pydantic"}),  # the script is kept
    ):
        report = f"api.GridReport({folder!r}, 'small_table', 'paper')"
        call = f"{report}.write(formats={formats!r}, to={to!r} and Path({to!r}))"
        assert imported_after(f"from pathlib import Path; from reports import api; {call}") & heavy == needed


def test_an_unknown_format_is_refused_before_anything_is_written(small_table):
    folder = small_table.save()
    with pytest.raises(ValueError, match="Unknown report format 'htm'. Did you mean 'html'?"):
        small_table.grid_report().write(formats=("md", "htm"))
    assert not (folder / "reports").exists()


def test_a_latex_float_counts_the_lines_below_its_values():
    below = Cell("50.0", published=("51.0", "-1.0"))
    table = Table("accuracy", ("dataset",), ("fedavg",), tuple(Row((f"d{number}",), (below,)) for number in range(40)))
    assert [len(part.rows) for part in latex._parts(table)] == [15, 15, 10]  # of three lines each


def test_a_text_that_is_a_number_only_without_its_spaces_is_none():
    assert csv.to_csv(pd.DataFrame({"a": ["-1", "\t1", "-1 "]})) == "a\n-1\n'\t1\n'-1 \n"
