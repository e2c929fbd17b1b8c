"""Which finished runs are stale, and what has changed since."""

import copy

import pytest

from bench import plugins
from bench.config import stale
from bench.config.code_version import code_version, definitions_of
from bench.config.resolve import resolve
from bench.registry import KINDS
from bench.results.ids import hash_of
from tests.support import method_files
from tests.support.earlier_code import earlier

CONFIG = resolve({"algorithm": "ccvr", "base": "moon", "dataset": "digits", "partition": "iid", "clients": 4})
NOW = code_version(CONFIG)
MOON = "algorithm moon"


@pytest.fixture
def known(monkeypatch) -> dict:
    """What `known_code.txt` lists; nothing before a test adds something."""
    known = {}
    monkeypatch.setattr(stale, "known", lambda: known)
    return known


def test_a_run_is_current_if_the_hash_of_each_part_is_that_of_today(known, store):
    assert stale.changes({"code": NOW}, CONFIG, store) == ()
    assert stale.changes({"code": NOW | {MOON: "0" * 16}}, CONFIG, store) == ((MOON, "0" * 16),)
    assert stale.changes({"code": NOW, "base_code": NOW | {MOON: "0" * 16}}, CONFIG, store) == ((MOON, "0" * 16),), (
        "it started from the end of a run of other code"
    )
    assert stale.changes({"code": NOW | {MOON: "0" * 16}}, CONFIG.canonical(), store) == ((MOON, "0" * 16),)


def test_a_run_of_a_version_of_the_harness_that_recorded_no_code_is_current(known, store):
    assert stale.changes({}, CONFIG, store) == ()


def test_a_run_from_when_the_code_of_its_partition_was_part_of_the_engine_is_current(store):
    engine = stale.known()["engine", 1]
    assert len(engine) > 1 and {"engine", "partition iid"} <= NOW.keys()
    before = {part: hash for part, hash in NOW.items() if part != "partition iid"}
    assert stale.changes({"code": before | {"engine": engine[0]}}, CONFIG, store) == ()
    assert stale.changes({"code": before | {"engine": "0" * 16}}, CONFIG, store) == (("engine", "0" * 16),)


def test_a_partition_that_changes_its_numbers_makes_runs_stale_whose_code_does_not_name_it(known, store):
    before = {part: hash for part, hash in NOW.items() if part != "partition iid"}
    known["partition iid", 1] = ["0" * 16]
    assert stale.changes({"code": before}, CONFIG, store) == (("partition iid", "0" * 16),)
    known["partition iid", 1].append(NOW["partition iid"])
    assert stale.changes({"code": before}, CONFIG, store) == ()


def test_code_that_is_known_to_give_the_numbers_of_the_version_is_no_change(known, store):
    before = {"code": NOW | {MOON: "0" * 16, "engine": "1" * 16}}
    known[MOON, 1] = ["0" * 16, NOW[MOON]]
    assert stale.changes(before, CONFIG, store) == (("engine", "1" * 16),)
    known["engine", 1] = [NOW["engine"], "1" * 16]
    assert stale.changes(before, CONFIG, store) == ()
    known[MOON, 1] = [NOW[MOON]]
    assert stale.changes(before, CONFIG, store) == ((MOON, "0" * 16),), "of the earlier code nobody knows the numbers"
    known[MOON, 1] = ["0" * 16]
    assert stale.changes(before, CONFIG, store) == ((MOON, "0" * 16),), "of the code of today nobody knows the numbers"
    known[MOON, 2] = ["0" * 16, "2" * 16]
    assert stale.changes(before, CONFIG, store) == ((MOON, "0" * 16),), "of another version"


def test_the_code_of_another_version_is_no_change_of_this_one(known, store):
    known[MOON, 2] = [NOW[MOON]]
    assert stale.changes({"code": NOW | {MOON: "0" * 16}}, CONFIG, store) == ()


def test_where_the_code_of_a_part_is_not_there_nothing_is_stale(known, tmp_path, monkeypatch, store):
    method_files.register(tmp_path, monkeypatch, {"mine_of_a_lab": '@registered("mine")\nclass Mine:\n    pass\n'})
    config = CONFIG.canonical() | {"algorithm": {"name": "mine"}}
    before = {"code": {"algorithm mine": "0" * 16}}
    assert stale.changes(before, config, store) == (("algorithm mine", "0" * 16),)
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert stale.changes(before, config, store) == ()


@pytest.mark.parametrize(
    ("kind", "decorator", "config"),
    [
        ("algorithm", "registered", {"algorithm": {"name": "mine"}, "versions": {"algorithm": 1}}),
        ("callback", "registered_callback", {"versions": {"callback.mine": 1}}),
        ("model", "registered_model", {"model": "mine", "versions": {"model": 1}}),
        ("partition", "registered_partition", {"partition": "mine-0.5", "versions": {"partition": 1}}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_of_a_version_that_a_lab_has_left_behind_is_not_stale(
    known, tmp_path, monkeypatch, kind, decorator, config, store
):
    folder = tmp_path / KINDS[kind].folder
    folder.mkdir()
    (folder / "mine_of_a_lab.py").write_text(
        f'from bench.registry import {decorator}\n\n\n@{decorator}("mine")\nclass Mine:\n    version = 2  # 1 forgot the sign\n'
    )
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path))
    before, part = CONFIG.canonical() | config, f"{kind} mine"
    now = before | {"versions": dict.fromkeys(config["versions"], 2)}
    assert stale.changes({"code": {part: "0" * 16}}, before, store) == (), "the next run leaves it as it is"
    assert stale.changes({"code": {part: "0" * 16}}, now, store) == ((part, "0" * 16),)


def lab_on_fedprox(folder, monkeypatch) -> tuple[str, dict]:
    """A part that a lab's method is, on FedProx of the harness, and a config of it."""
    method_files.register(folder, monkeypatch, {"mine_of_a_lab": _MINE})
    return "algorithm mine", CONFIG.canonical() | {"algorithm": {"name": "mine"}, "versions": {"algorithm": 1}}


_MINE = "from algorithms.fedprox import FedProx\n" + '@registered("mine")\nclass Mine(FedProx):\n    pass\n'
FEDPROX = "algorithms/fedprox.py"


def content_hash(part: str, file: str, store=None, digest: str = "") -> str:
    return hash_of((store.code(digest) if store else definitions_of(part))[file])


def test_a_file_of_the_harness_with_the_same_numbers_changes_no_run_of_a_lab(known, store, tmp_path, monkeypatch):
    part, config = lab_on_fedprox(tmp_path, monkeypatch)
    then = earlier(store, part, FEDPROX, "FedProx")
    before, now = content_hash(part, FEDPROX, store, then), content_hash(part, FEDPROX)
    changed = ((part, then),)
    assert stale.changes({"code": dict(changed)}, config, store) == changed
    known[f"file {FEDPROX}", 1] = [before]
    assert stale.changes({"code": dict(changed)}, config, store) == changed, (
        "of the code of today nobody knows the numbers"
    )
    known[f"file {FEDPROX}", 2] = [now]
    assert stale.changes({"code": dict(changed)}, config, store) == changed, "the numbers of the file have moved"
    known[f"file {FEDPROX}", 2] = [before, now]
    assert stale.changes({"code": dict(changed)}, config, store) == ()
    unknown = {"code": {part: "0" * 16}}
    assert stale.changes(unknown, config, store) == ((part, "0" * 16),), "the store does not know what it was"


def test_an_edit_of_a_lab_is_named_without_what_has_the_same_numbers(known, store, tmp_path, monkeypatch):
    part, config = lab_on_fedprox(tmp_path, monkeypatch)
    content = copy.deepcopy(definitions_of(part))
    content["algorithms/mine_of_a_lab.py"]["Mine"] = content[FEDPROX]["FedProx"] = "0" * 12
    store.write_code(hash_of(content), content)
    known[f"file {FEDPROX}", 1] = [hash_of(content[FEDPROX]), content_hash(part, FEDPROX)]
    changed = stale.changes({"code": {part: hash_of(content)}}, config, store)
    assert stale.what_changed(changed, store).endswith("0/algorithms/mine_of_a_lab.py: Mine")


def test_a_file_of_the_harness_that_is_new_or_gone_counts_with_what_imports_it(known, store, tmp_path, monkeypatch):
    part, config = lab_on_fedprox(tmp_path, monkeypatch)
    content = copy.deepcopy(definitions_of(part))
    content["algorithms/gone.py"] = {"f": "0" * 12}
    new = content.pop(FEDPROX)
    store.write_code(hash_of(content), content)
    record = {"code": {part: hash_of(content)}}
    known[f"file {FEDPROX}", 1] = [hash_of(new)]
    assert stale.what_changed(stale.changes(record, config, store), store) == "algorithms/gone.py", "nobody knows it"
    known["file algorithms/gone.py", 1] = [hash_of(content["algorithms/gone.py"])]
    assert stale.changes(record, config, store) == ()
    known["file algorithms/gone.py", 2] = ["0" * 16]
    assert stale.changes(record, config, store) != (), "it had moved numbers before it went"
    del known["file algorithms/gone.py", 2]
    known[f"file {FEDPROX}", 2] = known[f"file {FEDPROX}", 1]
    assert stale.changes(record, config, store) != (), (
        "nobody knows whether its numbers moved before something imported it"
    )
    known[f"file {FEDPROX}", 1] = ["0" * 16]
    assert stale.changes(record, config, store) != (), "its numbers have moved since something imported it"
    del known[f"file {FEDPROX}", 1]
    assert stale.changes(record, config, store) != (), "something that uses it moved its numbers when it was new"


def test_files_that_are_known_one_by_one_say_nothing_of_a_part_of_the_harness(known, store):
    then = earlier(store, MOON, "algorithms/moon.py", "Moon")  # one file of a change of two, in the midst of it
    changed = ((MOON, then),)
    file = "algorithms/moon.py"
    known[MOON, 1] = ["0" * 16, NOW[MOON]]
    known[f"file {file}", 1] = [content_hash(MOON, file, store, then), content_hash(MOON, file)]
    assert stale.changes({"code": NOW | dict(changed)}, CONFIG, store) == changed
    known[MOON, 1] = ["0" * 16]
    assert stale.changes({"code": NOW | dict(changed)}, CONFIG, store) == changed


def test_known_code_is_read_by_part_and_version():
    text = "# Words: of a comment\nalgorithm a-b 2: 01 23\nengine 1: 45\n\n"
    assert stale.read_known(text) == {("algorithm a-b", 2): ["01", "23"], ("engine", 1): ["45"]}


def test_what_has_changed_is_named_by_file_and_definition(store):
    digest = earlier(store, MOON, "algorithms/moon.py", "Moon.local_loss", "Moon")
    assert stale.what_changed([(MOON, digest)], store) == "algorithms/moon.py: Moon, Moon.local_loss"
    engine = earlier(store, "engine", "bench/seeding.py", "seed_for")
    assert stale.what_changed([("engine", engine), (MOON, digest)], store) == (
        "bench/seeding.py: seed_for; algorithms/moon.py: Moon, Moon.local_loss"
    )
    assert stale.what_changed([(MOON, "0" * 16)], store) == MOON, "the store does not know what it was"


def test_a_file_that_is_new_or_gone_and_definitions_that_are(known, store):
    content = copy.deepcopy(definitions_of(MOON))
    content["algorithms/gone.py"] = {"f": "0" * 12, "g": "0" * 12}
    del content["algorithms/shared/checks.py"]
    del content["algorithms/moon.py"]["Moon.local_loss"]
    content["algorithms/moon.py"]["Moon.removed"] = "0" * 12
    store.write_code(hash_of(content), content)
    assert stale.what_changed([(MOON, hash_of(content))], store) == (
        "algorithms/gone.py; algorithms/moon.py: Moon.local_loss, Moon.removed; algorithms/shared/checks.py"
    )


def test_a_long_list_is_cut(store):
    names = [name for name in definitions_of("engine")["bench/simulation/task.py"]]
    assert len(names) > 10
    digest = earlier(store, "engine", "bench/simulation/task.py", *names)
    text = stale.what_changed([("engine", digest)], store)
    assert text.count(",") == 5 and text.endswith(f" and {len(names) - 6} more")


def test_runs_since_which_the_same_has_changed_are_one_group(store):
    one, other = (
        ({"code": NOW | {MOON: earlier(store, MOON, "algorithms/moon.py", name)}}, CONFIG)
        for name in ("Moon", "Moon.local_loss")
    )
    failed = (one[0] | {"status": "failed"}, CONFIG)
    ended = {"a": one, "b": other, "c": ({"code": NOW}, CONFIG), "d": one, "e": failed}
    assert stale.stale_runs(ended, store) == {
        "algorithms/moon.py: Moon": ["a", "d"],
        "algorithms/moon.py: Moon.local_loss": ["b"],
    }
