"""What comes with the harness is known to give the numbers of its version, so that a change of ours repeats nobody's runs."""

import json

import pytest

from bench.config import stale
from bench.config.code_version import code_version, definitions_of
from bench.config.resolve import resolve
from bench.config.stale import KNOWN, read_known
from tests.support import fingerprints, known_code, method_files

LISTED = read_known(KNOWN.read_text(encoding="utf-8"))

_HEAD = '"""Of a lab."""\n'
LAB = {
    "algorithms/mine_of_a_lab.py": f"""{_HEAD}
from dataclasses import dataclass

from algorithms import registered
from algorithms.fedprox import FedProx
from algorithms.shared.wrapper import Wrapper
from bench.models.taps import Taps


@registered("mine")
@dataclass(frozen=True)
class Mine(FedProx):
    pass
""",
    "models/mine_of_a_lab.py": f"""{_HEAD}
from torch import nn

from bench.models import registered_model


@registered_model("mine")
def mine(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
""",
    "callbacks/mine_of_a_lab.py": f"""{_HEAD}
from dataclasses import dataclass

from bench.callbacks import Callback, registered_callback
from bench.callbacks.server_ema import ServerEma


@registered_callback("mine")
@dataclass(frozen=True)
class Mine(Callback):
    def after_round(self, outcome, own):
        return own, {{}}
""",
    "partitions/mine_of_a_lab.py": f"""{_HEAD}
from datasets.partitions import registered_partition


@registered_partition("mine")
def deal(labels, num_classes, num_clients, rng):
    return [*rng.permutation(len(labels)).reshape(num_clients, -1)]
""",
    "transforms/mine_of_a_lab.py": f"""{_HEAD}
from datasets.transforms import ALL, Recipe, registered_transform


@registered_transform("mine", version=1)
def mine():
    return {{ALL: Recipe(flip=True)}}
""",
}
OF_LAB = {
    "algorithm": "mine",
    "model": "mine",
    "partition": "mine",
    "transform": "mine",
    "callbacks": [{"name": "mine"}],
}


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


def test_a_file_gets_a_new_line_when_a_part_that_uses_it_has_a_new_version():
    own, shared, aside = (
        "file algorithms/fedprox.py",
        "file algorithms/shared/moments.py",
        "file algorithms/scaffold.py",
    )
    parts, files = known_code.today(), known_code.files_today()
    fedprox = next(key for key in parts if key[0] == "algorithm fedprox")
    before = {key: hashes for key, hashes in LISTED.items() if not key[0].startswith("file ") and key[0] != fedprox[0]}
    before |= {(own, 1): ["0" * 16], (aside, 1): ["1" * 16]}
    listed = read_known(known_code.added(before | {fedprox: [parts[fedprox]]}))
    assert listed[own, 1] == ["0" * 16, files[own.removeprefix("file ")]], "the same numbers"
    assert listed[shared, 1] == [files[shared.removeprefix("file ")]], "not listed before"
    listed = read_known(known_code.added(before | {("algorithm fedprox", 0): ["2" * 16]}))
    assert listed[own, 1] == ["0" * 16] and listed[own, 2] == [files[own.removeprefix("file ")]]
    assert listed[aside, 1] == ["1" * 16, files[aside.removeprefix("file ")]], "fedprox does not use it"
    assert (shared, 2) not in listed and not known_code.unlisted(listed)


def test_a_new_file_begins_with_its_second_line_when_a_part_that_uses_it_has_a_new_version():
    """Whether it has moved the numbers of what imports it, nobody knows."""
    own = "file algorithms/fedprox.py"
    before = {key: hashes for key, hashes in LISTED.items() if key[0] not in (own, "algorithm fedprox")}
    listed = read_known(known_code.added(before | {("algorithm fedprox", 0): ["2" * 16]}))
    assert [number for part, number in listed if part == own] == [2]
    assert not known_code.unlisted(listed) and read_known(known_code.added(listed)) == listed


def test_a_file_gets_a_new_line_when_a_part_that_uses_it_goes_back_to_an_earlier_version():
    own = "file algorithms/fedprox.py"
    now, part = known_code.files_today()[own.removeprefix("file ")], next(iter(LISTED["algorithm fedprox", 1]))
    before = LISTED | {("algorithm fedprox", 9): [part], (own, 1): [now], (own, 2): ["0" * 16]}
    listed = read_known(known_code.added(before))
    assert listed[own, 2] == ["0" * 16] and listed[own, 3] == [now]


def test_a_file_that_moves_numbers_of_labs_alone_gets_a_new_line_by_hand(capsys):
    file = "algorithms/shared/moments.py"
    now, key = known_code.files_today()[file], f"file {file}"
    for before in (["0" * 16], ["0" * 16, now]):
        listed = read_known(known_code.added(LISTED | {(key, 1): before}, [file]))
        assert (listed[key, 1], listed[key, 2]) == (["0" * 16], [now])
    with pytest.raises(SystemExit):
        known_code.main(["--moved", "algorithms/shared/momnts.py"])
    assert "labs use no file algorithms/shared/momnts.py" in capsys.readouterr().err


def test_every_file_that_the_code_of_a_lab_reaches_is_listed(tmp_path, monkeypatch):
    method_files.use(tmp_path, monkeypatch, LAB)
    config = resolve({**OF_LAB, "dataset": "digits", "clients": 2})
    parts = code_version(config).keys() & {
        "algorithm mine",
        "model mine",
        "callback mine",
        "partition mine",
        "transform mine",
    }
    assert len(parts) == 5
    reached = {file for part in parts for file in definitions_of(part)}
    own = {file for file in reached if file.endswith("/mine_of_a_lab.py")}
    assert len(own) == 5 and reached - own and reached - own <= known_code.files_today().keys()


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
