"""The board of a pool: every grid of every directory, with who, when, by which code, and what was verified."""

import shutil

from typer.testing import CliRunner

from bench.cli.app import app
from bench.results import authors, verified
from bench.results.store import Store
from reports import board
from tests.support.stores import LABEL, cells, results

AVG, PROX = cells("label-2", "fedavg"), cells("label-2", "fedprox")


def pool(folder):
    """Ours and that of a stranger, who has a method more and one seed of ours with other numbers."""
    results(folder / "ours", AVG, {cell.id: 0.5 for cell in AVG})
    theirs = results(
        folder / "theirs", (*AVG[:1], *PROX), {cell.id: 0.6 for cell in (*AVG[:1], *PROX)}, commit="b" * 40 + "-dirty"
    )
    (theirs.folder / authors.FILE).write_text(authors.text(authors.Authors({}, "Jane <b>|Doe")))
    run = AVG[0].id
    about = {"result": "equal", "rounds": 2, "of": 2, "by": "Ann", "when": "2026-11-26", "code": "c" * 40}
    first = about | {"result": "first rounds equal", "rounds": 1, "seed": 3}
    ours = Store(folder / "ours")
    said = {run: {**about, "files": verified.digest_of(ours, run)}}
    said[AVG[1].id] = {**first, "files": verified.digest_of(ours, AVG[1].id)}
    verified.write(folder / verified.FILE, said)
    return folder


def test_a_stranger_s_results_stand_beside_ours_with_who_when_code_and_what_is_verified(tmp_path):
    page = pool(tmp_path) / "theirs" / "reports" / f"{LABEL}.html"
    page.parent.mkdir(exist_ok=True)
    page.write_text("of before")
    code = CliRunner().invoke(app, ["board", str(tmp_path)], env={"COLUMNS": "300"})
    assert code.exit_code == 0, code.output
    assert (
        f"Run {AVG[0].id} has other numbers in theirs and in a directory before it (accuracy of round 1" in code.output
    )
    page = " ".join((tmp_path / "board.md").read_text().split())
    found = "1 equal, 1 first rounds equal (1 of 2 rounds)"
    assert f"| FedAvg | ours | 3 | not said | 2026-01-01 | aaaaaaaaaa | {found} (Ann, 2026-11-26) |" in page
    assert "| FedAvg | theirs | 1 | Jane &lt;b&gt;\\|Doe | 2026-01-01 | bbbbbbbbbb-dirty | no |" in page
    assert "| FedProx | theirs | 3 |" in page and f"[all together](<reports/{LABEL}.md>)" in page
    together = (tmp_path / "reports" / f"{LABEL}.md").read_text()
    assert "FedAvg" in together and "FedProx" in together
    assert "FedProx" in (tmp_path / "theirs" / "reports" / f"{LABEL}.html").read_text()
    assert not [*tmp_path.glob("ours/reports/*.html"), *tmp_path.glob("reports/*.html")]


def test_a_verified_run_that_has_changed_since_is_not_verified(tmp_path):
    folder = pool(tmp_path)
    verdicts = verified.read(folder / verified.FILE)
    shutil.rmtree(folder / "ours")
    results(folder / "ours", AVG, {cell.id: 0.7 for cell in AVG})
    assert "Ann" not in board.render([Store(folder / "ours")], verdicts)


def test_one_results_directory_is_no_pool(tmp_path):
    results(tmp_path / "ours", AVG, {})
    code = CliRunner().invoke(app, ["board", str(tmp_path / "ours")], env={"COLUMNS": "300"})
    assert code.exit_code == 2 and "is one results directory; name the folder in which several lie." in code.output
