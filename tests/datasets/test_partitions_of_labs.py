"""Partitions that are functions of labs."""

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import plugins
from bench.config import stale
from bench.config.code_version import code_version, definitions_of, files_of
from bench.config.resolve import resolve
from bench.config.schema import run_id
from bench.errors import ConfigError
from bench.execution.dealing import check_partitions_of_labs
from bench.experiments.stored_grid import titles_of_labs
from bench.results.store import Store
from datasets import partitions
from reports.tables.names import Names
from tests.support import method_files
from tests.support.lab_files import HOSPITAL

LABELS = np.arange(40) % 4
SETTINGS = {"algorithm": "fedavg", "dataset": "digits", "partition": "hospital", "clients": 4, "rounds": 1}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Writes and uses a folder with one partition."""

    def make(content=HOSPITAL):
        method_files.use(tmp_path / "mylab", monkeypatch, {"partitions/hospital.py": content})

    return make


def deal(name="hospital", seed=0):
    return partitions.parse(name).split(LABELS, 4, 4, seed)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hospital", "hospital-0.5-2"),
        ("hospital-0.70", "hospital-0.7-2"),
        ("hospital-0.7-3", "hospital-0.7-3"),
        ("hospital-1-1", "hospital-1-1"),
    ],
)
def test_its_name_says_all_numbers(lab, text, name):
    lab()
    assert partitions.parse(text).name == name == partitions.parse(name).name
    assert resolve(SETTINGS | {"partition": text}).partition == name


def test_it_is_known_before_its_file_is_imported(lab):
    lab()
    assert partitions.known_kinds()["hospital-share-wards"] == "The first clients have a share of all examples."
    assert partitions.parse("hospital").for_people == ("Hospitals(0.5, 2)", "")
    assert "datasets.partitions.hospital" not in sys.modules
    with pytest.raises(ValueError, match="Unknown partition 'hospitl'. Did you mean"):
        partitions.parse("hospitl")


def test_it_deals_by_its_numbers_and_the_seed_of_the_run(lab):
    lab()
    assert [len(rows) for rows in deal("hospital-0.25-1")] == [10, 10, 10, 10]
    assert [len(rows) for rows in deal("hospital")] == [10, 10, 10, 10]
    assert [len(rows) for rows in deal("hospital-0.6-3")] == [8, 8, 8, 16]
    assert np.array_equal(deal(seed=1)[0], deal(seed=1)[0]) and not np.array_equal(deal(seed=1)[0], deal(seed=2)[0])
    assert all(rows.dtype == np.int64 for rows in deal())


@pytest.mark.parametrize("text", ["hospital-x", "hospital-0.5-2-3", "hospital-0.5-1.5", "hospital-"])
def test_other_numbers_are_refused(lab, text):
    lab()
    if text == "hospital-":
        assert partitions.parse(text) == partitions.parse("hospital")
        return
    with pytest.raises(ValueError, match=f"hospital takes numbers of the kinds share=0.5, wards=2, but got '{text}'"):
        partitions.parse(text)


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ("[rows] * 4", "the index 0 is in train of clients 0 and 1"),
        ("[rows]", "must return a list of 4 arrays, one for each client, but returned 1 parts"),
        ("rows", "but returned a ndarray"),
        ("[rows[:0], rows[:9], rows[9:12], rows[12:]]", "client 0 has no examples in train"),
        ("[rows[:9], rows[9:12], rows[12:], rows[:0]]", "client 3 has no examples in train"),
        ("np.array_split(rows + 1, 4)", r"gives client \d the index 40, but there are 40 training examples"),
        ("np.array_split(rows - 1, 4)", "indices count from 0, but train of client . has -1"),
        ("np.array_split(rows / 1, 4)", r"gives client 0 float64 of shape \(10,\); indices are integers"),
        (
            "np.random.seed(7) or np.array_split(np.random.permutation(40), 4)",
            "draws from a generator that all code shares, .*, and so changes the draws of all other code; take every draw from",
        ),
        (
            "__import__('random').shuffle([1, 2]) or np.array_split(rows, 4)",
            "draws from a generator that all code shares",
        ),
        ("np.array_split(rows, clients)", "failed in line 11: NameError: name 'clients' is not defined"),
    ],
)
def test_what_is_no_partition_gets_a_sentence(lab, returned, sentence):
    content = HOSPITAL.split("    return")[0] + f"    return {returned}\n"
    lab(content)
    with pytest.raises(ValueError, match=f"^hospital in mylab/partitions/hospital.py.*{sentence}"):
        deal()


def test_what_deals_otherwise_when_it_is_called_again_is_refused_before_any_work(lab):
    for right, content in [(True, HOSPITAL), (False, HOSPITAL.replace("rng.perm", "np.random.default_rng().perm"))]:
        lab(content)
        cell = SimpleNamespace(missing="", config=resolve(SETTINGS))
        with (
            nullcontext()
            if right
            else pytest.raises(ConfigError, match="partitions/hospital.py deals other examples when")
        ):
            check_partitions_of_labs([cell.config], None)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('"hospital"', '"dir-mine"', "mylab/partitions/hospital.py: dir-mine is read as a partition of the harness"),
        (
            '"hospital"',
            '"iid"',
            "Two things are registered as 'iid', in datasets/partitions/iid.py and mylab/partitions/hospital.py",
        ),
        ("share=0.5", "share=None", "share must be a number of at least 0, but got None"),
        ("({}, {})", "({}, {}, {})", "title must have at most one {}, and latex one %s, for each of the 2 parameters"),
    ],
)
def test_a_decorator_that_says_something_else_is_refused(lab, before, after, sentence):
    lab(HOSPITAL.replace(before, after, 1))
    with pytest.raises(ConfigError, match=sentence):
        partitions.parse("hospital")


WARDS = '''from dataclasses import dataclass

import numpy as np

from datasets.partitions import Drawn, Partition, registered_partition


@registered_partition("wards", title="{} wards, {}", latex="%s, $%s$", symbols={"num_wards": "w", "share": "s"}, share=0.5)
@dataclass(frozen=True)
class Wards(Partition):
    """Clients hold wards."""

    num_wards: int
    share: float
    parameter = "a whole number w of at least 1 and a share s"

    @staticmethod
    def accepts(num_wards, share):
        return isinstance(num_wards, int) and num_wards >= 1 and 0 < share < 1

    def deal(self, labels, num_clients, num_classes, seed, **others):
        rows = np.random.default_rng(seed).permutation(len(labels))
        return Drawn(np.array_split(rows[: round(self.share * len(rows))], num_clients))
'''


def test_small_integers_are_indices_as_others_are(lab):
    lab(WARDS.replace("permutation(len(labels))", "permutation(len(labels)).astype(np.int16)"))
    assert {part.dtype for part in deal("wards-3")} == {np.dtype(np.int64)}


@pytest.mark.parametrize("name", ["hospital-0.5-1e999", f"hospital-0.5-{'9' * 400}", f"label-{'9' * 400}"])
def test_a_number_that_is_none_is_refused(lab, name):
    lab()
    with pytest.raises(ValueError, match="but got '(hospital|label)-"):
        partitions.parse(name)


def test_a_class_of_a_lab_is_a_kind_as_those_of_the_box(lab):
    lab(WARDS)
    assert partitions.known_kinds()["wards-w-s"] == "Clients hold wards."
    assert "datasets.partitions.hospital" not in sys.modules
    dealt = partitions.parse("wards-3")
    assert (dealt.name, dealt) == ("wards-3-0.5", partitions.parse("wards-3-0.50"))
    assert dealt.for_people == ("3 wards, 0.5", "3, $0.5$") and [len(rows) for rows in deal("wards-3")] == [5] * 4
    for text in ("wards", "wards-0", "wards-3-2", "wards-x", "wards-3-0.5-1"):
        with pytest.raises(
            ValueError, match=f"^wards-w-s needs a whole number w of at least 1 and a .*, but got '{text}'"
        ):
            partitions.parse(text)
    config = resolve(SETTINGS | {"partition": "wards-3"})
    assert [*definitions_of("partition wards")] == ["datasets/partitions/hospital.py"]
    assert "partition wards" in code_version(config) and config.partition == "wards-3-0.5"


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("(Partition)", "", "Wards in mylab/partitions/hospital.py is no partition; write class Wards"),
        ("@dataclass(frozen=True)\n", "", r"must be a @dataclass\(frozen=True\) whose fields are .* the fields \[\]"),
        ("share: float", "part: float", r"the fields \['num_wards', 'part'\] and the symbols \['num_wards', 'share'\]"),
        ("Drawn(", "list(", r"Wards in mylab/partitions/hospital.py failed: AttributeError"),
        (
            "rows[: round(self.share * len(rows))]",
            "rows + 1",
            "wards-3-0.5 must deal each of the 40 examples to one client at most: 4 integer arrays",
        ),
        (
            "num_clients))",
            "2))",
            "wards-3-0.5 must deal each of the 40 examples to one client at most: 4 integer arrays",
        ),
        (
            "Drawn(",
            "(lambda parts: Drawn([*map(list, parts)]))(",
            "integer arrays of indices from 0, but Wards in mylab",
        ),
        (
            "rows = np",
            "rows = np.random.default_rng(seed).choice(3, 9, replace=False)\n        rows = np",
            "Wards in mylab/partitions/hospital.py failed in line 2.: ValueError: Cannot take a larger sample",
        ),
        ("Drawn(", "Drawn([]) or Drawn(", "4 integer arrays of indices from 0, but Wards in mylab"),
        (
            "self.share",
            "self.part",
            "hospital.py failed in line 2.: AttributeError: 'Wards' object has no attribute 'part'",
        ),
    ],
)
def test_what_is_no_partition_of_a_class_gets_a_sentence(lab, before, after, sentence):
    assert before in WARDS
    lab(WARDS.replace(before, after, 1))
    with pytest.raises(ValueError, match=sentence):
        deal("wards-3")


@pytest.mark.parametrize(
    ("tested", "is_right"), [("rows[30:]", True), ("rows[:20]", False), ("rows[39:]", False), ("", False)]
)
def test_a_class_whose_clients_have_tests_of_their_own_tests_on_no_training_example(lab, tested, is_right):
    both = f", 1, np.array_split({tested}, num_clients)" if tested else ""
    content = WARDS.replace("    num_wards:", "    has_own_tests = True\n    num_wards:")
    lab(content.replace(", num_clients))", f", num_clients){both})"))
    if is_right:
        drawn = partitions.parse("wards-3").draw(LABELS, 4, 4, 0, num_test=10)
        assert not {*np.concatenate(drawn.indices)} & {*np.concatenate(drawn.test_indices)}
    else:
        with pytest.raises(ValueError, match="as many for testing, but|leaves client 1 of 4"):
            partitions.parse("wards-3").draw(LABELS, 4, 4, 0, num_test=10)


def test_the_function_cannot_change_the_labels(lab):
    lab(HOSPITAL.replace("    rows", "    labels[:] = 0\n    rows"))
    deal()
    assert LABELS.max() == 3


def test_an_edited_partition_makes_its_runs_stale_and_is_named(lab, tmp_path):
    lab()
    config = resolve(SETTINGS)
    record = {"code": code_version(config)}
    assert "partition hospital" in record["code"] and stale.changes(record, config, Store(tmp_path / "store")) == ()
    assert Path(partitions.KINDS["hospital"].path) in files_of(config)
    assert "partition hospital" not in code_version(resolve(SETTINGS | {"partition": "iid"}))
    lab(HOSPITAL.replace("round(", "int("))
    edited = resolve(SETTINGS)
    assert run_id(edited) == run_id(config)
    changed = stale.changes(record, edited, Store(tmp_path / "store"))
    assert [part for part, _ in changed] == ["partition hospital"]
    assert "(partition hospital)" in stale.why_repeated(changed, Store(tmp_path / "store"))


def test_without_the_folder_nothing_is_known_about_its_code_and_its_title_is_stored(lab, monkeypatch, tmp_path):
    lab()
    config = resolve(SETTINGS)
    record = {"code": code_version(config)}
    cell = {"dataset": "digits", "substitute": None, "config": config.canonical()}
    titles = titles_of_labs([cell])
    assert titles == {"partition": {"hospital-0.5-2": "Hospitals(0.5, 2)"}}
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert stale.changes(record, config, Store(tmp_path / "store")) == ()
    assert Names(titles=titles).value("partition", "hospital-0.5-2").plain == "Hospitals(0.5, 2)"
    with pytest.raises(ConfigError, match="Unknown partition 'hospital'"):
        resolve(SETTINGS)
