"""What comes with the harness is known to give the numbers of its version, so that a change of ours repeats nobody's runs."""

import json

import pytest

from bench.config import stale
from bench.config.stale import KNOWN, read_known
from tests.support import fingerprints, known_code

LISTED = read_known(KNOWN.read_text(encoding="utf-8"))


def test_todays_code_is_listed_under_its_version():
    assert not known_code.unlisted(LISTED), (
        f"bench/known_code.txt does not list the code of today, so that finished runs would be repeated. If no number has "
        f"changed, add it by `{known_code.COMMAND}`; else raise the versions first."
    )


def test_code_that_is_not_listed_is_found_and_added():
    less = {key: hashes for key, hashes in LISTED.items() if key != ("algorithm scaffold", 2)}
    assert known_code.unlisted(less) == ["algorithm scaffold 2"]
    assert known_code.unlisted(LISTED | {("engine", 1): ["0" * 16]}) == ["engine 1"]
    longer = read_known(known_code.added(less | {("engine", 1): ["0" * 16], ("algorithm gone", 1): ["1" * 16]}))
    assert longer["engine", 1] == ["0" * 16, known_code.today()["engine", 1]], "what was known stays"
    assert longer["algorithm gone", 1] == ["1" * 16]
    assert not known_code.unlisted(longer)


def test_code_with_other_numbers_is_refused_and_nothing_is_written(monkeypatch, tmp_path):
    found = json.loads(fingerprints.STORED.read_text())
    assert known_code.refusal(found) == ""
    found["algorithm"]["fedavg"]["numbers"][0] *= 1.01
    monkeypatch.setattr(fingerprints, "compute", lambda: found)
    monkeypatch.setattr(known_code, "KNOWN", tmp_path / "known_code.txt")
    with pytest.raises(SystemExit) as refused:
        known_code.main()
    assert str(refused.value) == (
        "Nothing was listed: finished runs would pass for those of today's code. The numbers of the algorithm fedavg have "
        "changed: raise its version above 1, then store the new fingerprints with `python -m tests.support.fingerprints`."
    )
    assert not (tmp_path / "known_code.txt").exists()
    monkeypatch.setattr(fingerprints, "compute", lambda: json.loads(fingerprints.STORED.read_text()))
    known_code.main()
    assert not known_code.unlisted(read_known((tmp_path / "known_code.txt").read_text()))


def test_the_file_that_runs_are_compared_with_is_the_one_that_is_listed():
    assert stale.known() == LISTED
