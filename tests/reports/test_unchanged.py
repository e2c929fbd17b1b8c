"""Reports are made again if, and only if, something has changed of what they follow from."""

import json
import sys

import pytest

from bench.results import written
from bench.results.store import Store
from reports import api
from reports.figures import lines
from reports.html import page
from tests.support import method_files
from tests.support.growth import grid_file, write_store
from tests.support.processes import call_bench
from tests.support.stores import LABEL, cells, finish, results

LABEL_2 = cells("label-2")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of this test's own."""
    monkeypatch.setattr(written, "default_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """What has been made: "page" for each page, "figure" for each file of a figure."""
    done = []

    def counted(what, function):
        def count(*arguments, **options):
            done.append(what)
            return function(*arguments, **options)

        return count

    monkeypatch.setattr(page, "render", counted("page", page.render))
    monkeypatch.setattr(lines, "save", counted("figure", lines.save))
    monkeypatch.setattr(lines, "FORMATS", ("svg",))
    return done


@pytest.fixture
def store(tmp_path) -> Store:
    return results(tmp_path / "results", LABEL_2, {cell.id: 0.5 for cell in LABEL_2[:-1]})


def write(store: Store, **options) -> dict:
    """Tables and a figure as a new process would write them."""
    paths = api.GridReport(Store(store.folder), "quickstart", "paper").write(**options)
    api.GridReport(Store(store.folder), "quickstart", "paper").write_figures(("rounds",))
    return paths


def test_a_second_report_of_the_same_makes_neither_page_nor_figure(store, made):
    paths = write(store)
    before = {path: path.stat().st_mtime_ns for path in paths.values()}
    assert made == ["page", "figure"]
    assert write(store) == paths
    assert made == ["page", "figure"]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_page_that_is_gone_or_damaged_is_made_again(store, made):
    path = write(store)["html"]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    assert write(store)["html"].read_bytes() == whole
    path.unlink()
    assert write(store)["html"].read_bytes() == whole
    assert made.count("page") == 3 and made.count("figure") == 1


def test_a_figure_that_a_driver_adds_meanwhile_is_drawn(store, made, monkeypatch):
    """It adds it just before a report notes what it was made of."""
    digest = Store.digest

    def list_figures(*axes: str) -> None:
        grid = store.grid(LABEL)
        figures = [{"kind": "curves", "x": x} for x in axes]
        store.write_grid(LABEL, grid | {"report": grid["report"] | {"figures": figures}})

    def after_a_driver(self, name):
        list_figures("rounds", "communication")
        return digest(self, name)

    list_figures("rounds")
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Store, "digest", after_a_driver)
        api.GridReport(Store(store.folder), "quickstart", "paper").write_figures()
    drawn, _ = api.GridReport(Store(store.folder), "quickstart", "paper").write_figures()
    assert [path.stem.removeprefix(f"{LABEL}-") for path in drawn] == ["rounds", "communication"]


FAILING = """
from matplotlib.figure import Figure as Drawn

from reports.figures import Figure, registered_figure


@registered_figure("broken")
class Broken(Figure):
    \"\"\"Needs something that may be missing.\"\"\"

    shape = {}

    def collect(self, grid, records, store, value=None):
        return {"one": 1}

    def draw(self, found, widths):
        FAILS
        return Drawn()
"""


def test_a_figure_of_a_lab_that_could_not_be_drawn_is_tried_again(store, tmp_path, monkeypatch):
    """What it lacked, a package for example, may be there next time."""
    method_files.use(tmp_path / "mylab", monkeypatch, {"figures/broken.py": FAILING.replace("FAILS", "import nowhere")})
    report = {"report": store.grid(LABEL)["report"] | {"figures": [{"kind": "broken"}]}}
    store.write_grid(LABEL, store.grid(LABEL) | report)
    for _ in range(2):
        paths, (said,) = api.GridReport(Store(store.folder), "quickstart", "paper").write_figures()
        assert paths == [] and "ModuleNotFoundError: No module named 'nowhere'" in said
    (tmp_path / "nowhere.py").touch()
    monkeypatch.delitem(sys.modules, "nowhere", raising=False)  # and after the test
    monkeypatch.syspath_prepend(tmp_path)
    paths, said = api.GridReport(Store(store.folder), "quickstart", "paper").write_figures()
    assert {path.stem for path in paths} == {f"{LABEL}-broken"} and said == []


def finish_last(store: Store) -> None:
    with store.locked():
        finish(store, LABEL_2[-1], 0.7)


def measure(store: Store) -> None:
    counts = {"classes": ["a", "b"], "label_counts": [[1, 2], [3, 4]]}
    store.write_probe(LABEL_2[0].id, "label-counts", {"version": 1, "result": counts})


def damage(store: Store) -> None:
    path = store.run_folder(LABEL_2[0].id) / "rounds.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))


def rename(store: Store) -> None:
    store.write_grid(LABEL, store.grid(LABEL) | {"title": "Another title"})


@pytest.mark.slow_but_first
@pytest.mark.parametrize("change", [finish_last, measure, damage, rename])
def test_a_page_is_made_again_when_a_run_a_measurement_or_the_grid_has_changed(store, made, change):
    before = write(store)["html"].read_text()
    change(store)
    after = write(store)["html"].read_text()
    assert made == ["page", "figure"] * 2 and after != before
    assert after == api.GridReport(store.folder, "quickstart", "paper").render(format="html")


@pytest.mark.slow
def test_a_page_is_made_again_by_other_code_and_with_other_options(store, made, monkeypatch):
    write(store)
    write(store, value="best")
    assert made.count("page") == 2
    digest = written.code_digest()
    assert digest == written.code_digest()
    monkeypatch.setattr(written, "code_digest", lambda: digest[::-1])
    write(store)
    assert made.count("page") == 3


def test_the_digest_of_the_code_depends_on_templates_published_values_and_libraries(tmp_path, monkeypatch):
    digest = written.code_digest.__wrapped__
    digests = {digest()}
    lab = tmp_path / "algorithms"
    method_files.use(tmp_path, monkeypatch, {"algorithms/README.md": ""})
    for name in ("method.py", "page.html.jinja", "values.csv"):
        (lab / name).write_text("")
        digests.add(digest())
    monkeypatch.setattr(written, "version", lambda library: "99")
    digests.add(digest())
    assert len(digests) == 5


@pytest.mark.slow
def test_a_note_that_is_no_note_counts_as_none(store, made, cache):
    write(store)
    for path in (cache / "reports").iterdir():
        path.write_text(json.dumps({"inputs": 3}))
    write(store)
    for path in (cache / "reports").iterdir():
        path.write_text("[" * 100_000)
    write(store)
    assert made.count("page") == 3


def test_without_a_cache_every_report_is_made_anew(store, made, cache):
    cache.write_text("no folder")
    write(store)
    write(store)
    assert made.count("page") == 2


def test_a_results_directory_cannot_vouch_for_its_own_page(store, made):
    """Whoever hands it on may have written anything beside the page, but not into the cache."""
    write(store)
    copy = store.folder.rename(store.folder.with_name("handed-on"))
    (copy / "reports" / f"{LABEL}.html").write_text("<script>anything</script>")
    assert "anything" not in write(Store(copy))["html"].read_text()
    assert made.count("page") == 2


@pytest.fixture
def read(monkeypatch) -> list[str]:
    """Names of the folders of runs, and of the files of grids, that have been read."""
    found = []

    def note(path, *arguments, read_foreign=written.read_foreign):
        found.append(path.stem if path.parent.name == "grids" else path.parent.name)
        return read_foreign(path, *arguments)

    monkeypatch.setattr("bench.results.json_files.read_foreign", note)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("export", "--grid", "small", "--to", "rounds.csv"),
        ("report", "--grid", "small", "--format", "md"),
        ("run", "--grid", "small.yaml"),
    ],
    ids=lambda words: words[0],
)
def test_a_grid_beside_others_costs_only_its_own_runs(tmp_path, monkeypatch, read, words):
    monkeypatch.chdir(tmp_path)
    small, others = grid_file(tmp_path, "small", 25, batch_size=32), grid_file(tmp_path, "others", 25)
    write_store(tmp_path / "store", [small, others], rounds=2)
    grids = {
        name: {cell["run"] for cell in Store("store").grid(f"{name}@paper")["cells"]} for name in ("small", "others")
    }
    read.clear()
    code, printed = call_bench(*words, "--results-dir", "store")
    assert code == 0, printed
    assert grids["small"] | {"small@paper"} <= {*read}
    assert not {*read} & (grids["others"] | {"others@paper"})


def test_a_report_of_all_grids_reads_them_all(tmp_path, read):
    write_store(
        tmp_path / "store", [grid_file(tmp_path, name, 25, batch_size=size) for name, size in (("a", 16), ("b", 32))], 2
    )
    ids = {path.name for path in (tmp_path / "store" / "runs").iterdir()}
    assert len(ids) == 50
    read.clear()
    code, printed = call_bench("report", "--results-dir", tmp_path / "store", "--format", "md")
    assert code == 0 and ids | {"a@paper", "b@paper"} <= {*read}, printed
