"""Commits of the files that a run used."""

import subprocess
from pathlib import Path

import pytest

from bench import __version__, provenance
from bench.commit_in_wheel import commit_of

VERSION = f"version {__version__}"


def git(folder: Path, *words: str) -> str:
    options = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    return subprocess.run(
        ["git", *options, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(autouse=True)
def repository(tmp_path, monkeypatch) -> Path:
    """A repository in which this code lies, with two methods."""
    _forget()
    folder = make(tmp_path / "skewbench")
    monkeypatch.setattr(provenance, "_HERE", folder / "bench" / "provenance.py")
    yield folder
    _forget()


def _forget():
    provenance._status.cache_clear()
    provenance._repository_of.cache_clear()


def make(folder: Path) -> Path:
    for name in ("bench/provenance.py", "methods/one method.py", "methods/other.py", "docs/text.md"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("A = 1\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "All")
    return folder


def told(*files: Path) -> dict:
    _forget()
    return provenance.commits_of(files, {file.parent for file in files})


def test_a_commit_is_dirty_only_if_a_file_of_the_run_is_changed(repository):
    own, commit = repository / "methods" / "one method.py", git(repository, "rev-parse", "HEAD")
    assert told(own) == {"commit": commit}
    (repository / "methods" / "other.py").write_text("A = 2\n")
    (repository / "docs" / "text.md").write_text("Other words.\n")
    (repository / "methods" / "new.py").write_text("")
    assert told(own) == {"commit": commit}, "no file of the run"
    assert told(own, repository / "methods" / "other.py") == {"commit": f"{commit}-dirty"}
    own.write_text("A = 3\n")
    assert told(own) == {"commit": f"{commit}-dirty"}
    git(repository, "add", ".")
    assert told(own) == {"commit": f"{commit}-dirty"}, "it is not committed yet"
    git(repository, "commit", "-q", "-m", "More")
    assert told(own) == {"commit": git(repository, "rev-parse", "HEAD")} != {"commit": commit}


def test_installed_code_has_the_commit_of_the_clone_in_which_its_wheel_was_built(repository, tmp_path, monkeypatch):
    commit = git(repository, "rev-parse", "HEAD")
    assert commit_of(repository, ["bench"]) == commit
    assert not commit_of(repository / "methods", ["bench"]) and not commit_of(tmp_path, ["bench"])
    (repository / "docs" / "text.md").write_text("Other words.\n")
    assert commit_of(repository, ["bench"]) == commit, "not in the wheel"
    (repository / "bench" / "new.py").write_text("")
    assert commit_of(repository, ["bench"]) == f"{commit}-dirty"
    (tmp_path / "site" / "bench").mkdir(parents=True)
    monkeypatch.setattr(provenance, "_HERE", tmp_path / "site" / "bench" / "provenance.py")
    method = tmp_path / "site" / "method.py"
    method.write_text("")
    assert told(method) == {"commit": VERSION}
    (tmp_path / "site" / "bench" / "commit.txt").write_text(f"{commit}\n")
    assert told(method) == {"commit": commit}


@pytest.mark.parametrize("ignored", ["", "new.py", "methods/mine/", "*"])
def test_a_file_that_git_does_not_know_is_dirty(ignored, repository):
    (repository / "methods" / "mine").mkdir()
    (repository / "methods" / "mine" / "new.py").write_text("")
    (repository / ".gitignore").write_text(ignored)
    commit = git(repository, "rev-parse", "HEAD")
    assert told(repository / "methods" / "mine" / "new.py") == {"commit": f"{commit}-dirty"}


def test_another_repository_is_named_by_its_folder(repository, tmp_path):
    lab, twin = make(tmp_path / "lab"), make(tmp_path / "copies" / "lab")
    for folder in (lab, twin):
        git(folder, "commit", "-q", "--allow-empty", "-m", folder.parent.name)
    commits = [git(folder, "rev-parse", "HEAD") for folder in (repository, lab, twin)]
    (lab / "methods" / "other.py").write_text("A = 2\n")
    own = repository / "methods" / "other.py"
    assert told(own, lab / "methods" / "one method.py") == {"commit": commits[0], "commits": {"lab": commits[1]}}
    found = told(own, *(folder / "methods" / "other.py" for folder in (lab, twin)))
    assert found["commit"] == commits[0]
    assert found["commits"] == {"lab": commits[2], "lab 2": f"{commits[1]}-dirty"}, "in the order of their paths"


def test_git_is_asked_once_for_each_repository(repository, tmp_path, monkeypatch):
    lab, asked, run = make(tmp_path / "lab"), [], subprocess.run

    def counted(command, **options):
        asked.append(options["cwd"])
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", counted)
    files = [folder / "methods" / name for folder in (repository, lab) for name in ("one method.py", "other.py")]
    folders = {file.parent for file in files}
    for used in (files, files[:1], files[1:3], files[3:]):
        provenance.commits_of(used, folders)
    assert sorted(asked) == sorted([repository, lab])


def test_without_git_and_outside_a_repository_there_is_a_version(repository, tmp_path, monkeypatch):
    outside = tmp_path / "outside.py"
    outside.write_text("")
    own = repository / "methods" / "other.py"
    assert told(own, outside) == {"commit": git(repository, "rev-parse", "HEAD")}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert told(own) == {"commit": VERSION}
    monkeypatch.undo()
    monkeypatch.setattr(provenance, "_HERE", tmp_path / "bench" / "provenance.py")
    assert told(outside) == {"commit": VERSION}


@pytest.mark.parametrize("ignored", ["", ".venv/"])
def test_code_that_is_installed_inside_a_repository_of_others_is_not_of_that_repository(ignored, tmp_path, monkeypatch):
    lab = make(tmp_path / "lab")
    (lab / ".gitignore").write_text(ignored)
    packages = lab / ".venv" / "lib" / "site-packages"
    for name in ("bench/provenance.py", "algorithms/fedavg.py"):
        (packages / name).parent.mkdir(parents=True)
        (packages / name).write_text("")
    monkeypatch.setattr(provenance, "_HERE", packages / "bench" / "provenance.py")
    own, mine, commit = (
        packages / "algorithms" / "fedavg.py",
        lab / "methods" / "other.py",
        git(lab, "rev-parse", "HEAD"),
    )
    assert told(own) == {"commit": VERSION}
    assert told(own, mine) == {"commit": VERSION, "commits": {"lab": commit}}
    mine.write_text("A = 2\n")
    assert told(own, mine)["commits"] == {"lab": f"{commit}-dirty"}


def test_a_repository_without_a_commit_has_none(repository, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    (empty / "mine.py").write_text("")
    assert "commits" not in told(empty / "mine.py")
