"""Partitions from files: what is read, how it is named, and what is wrong with files that are none."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from datasets import load, partition_files
from datasets.partition_files import Content, keep, read, write
from datasets.partitions import parse
from datasets.show import draw
from tests.support.processes import call_bench

TRAIN, TEST = [[3, 1, 2], [7, 5]], [[0], [2, 1]]
PFLLIB = Path(__file__).with_name("pfllib_clients.json")


@pytest.fixture
def saved(tmp_path):
    def save(content, name: str = "parts.json") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return save


def as_lists(content: Content) -> list:
    return [part and [rows.tolist() for rows in part] for part in (content.train, content.test)]


def test_clients_are_a_list_or_numbered_and_keep_the_order_of_their_indices(saved):
    listed = read(saved({"train": TRAIN, "test": TEST}))
    numbered = {
        key: {str(client): part[client] for client in (1, 0)} for key, part in (("train", TRAIN), ("test", TEST))
    }
    assert as_lists(listed) == [TRAIN, TEST] == as_lists(read(saved(numbered)))
    assert as_lists(read(saved({"train": TRAIN}))) == [TRAIN, None]


def test_the_name_is_the_stem_and_the_digest_is_of_what_the_file_says(saved, tmp_path, monkeypatch):
    path = saved({"train": TRAIN, "test": TEST})
    monkeypatch.chdir(tmp_path)
    here = parse("file:parts.json")
    assert here == parse(f"file:{path}") and here.for_people == ("parts", "")
    np.savez(tmp_path / "arrays.npz", train_0=TRAIN[0], train_1=TRAIN[1], test_0=TEST[0], test_1=TEST[1])
    same = saved(json.dumps({"test": TEST, "train": TRAIN, "pooled": False}, indent=3), "spaced.json")
    assert {parse(f"file:{other}").digest for other in (same, "arrays.npz")} == {here.digest}
    for other in ({"train": TRAIN}, {"train": TRAIN[::-1], "test": TEST}, {"train": [[1, 3, 2], [7, 5]], "test": TEST}):
        assert parse(f"file:{saved(other, 'other.json')}").digest != here.digest
    saved({"train": TRAIN})
    assert parse("file:parts.json") != here, "a file that has changed is read again"


def test_a_reference_is_parsed_without_its_content_and_says_where_that_is(saved, monkeypatch, tmp_path):
    named = parse(f"file:{saved({'train': TRAIN})}")
    monkeypatch.setattr(partition_files, "_CONTENTS", {})
    unread = parse(named.name)
    assert (unread.name, unread.for_people) == (named.name, ("parts", ""))
    with pytest.raises(ValueError, match=rf"are not known: .*Name the file, as file:PATH; .*{unread.name[5:]}\.npz"):
        unread.draw(np.zeros(9, int), 2, 1, 0)


def test_a_kept_file_is_the_same_partition_under_the_same_name(saved, tmp_path):
    named = parse(f"file:{saved({'train': TRAIN, 'test': TEST, 'pooled': False})}")
    path = keep(named, tmp_path / "partitions")
    assert path == tmp_path / "partitions" / f"parts@{named.digest}.npz"
    assert parse(f"file:{path}").name == named.name


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], r"a partition is an object with the keys train, test and pooled, but got \[\]\."),
        ({"trian": []}, r"Unknown key 'trian'\. Did you mean 'train'\?"),
        ({"test": [[1]]}, "it has no key train"),
        ({"train": []}, "train must be a list with the indices of each client, .* but got"),
        ({"train": "abc"}, "train must be a list .* but got 'abc'"),
        ({"train": {"0": [1], "2": [2]}}, "the clients of train are numbered from 0 to 1, but it has the client '2'"),
        ({"train": [[0], 3]}, "train of client 1 must be a list of indices, but got 3"),
        ({"train": [[0], [True]]}, "an index is a whole number, but train of client 1 has True"),
        ({"train": [[0], [1.0]]}, r"an index is a whole number, but train of client 1 has 1\.0"),
        ({"train": [[0], [-1]]}, "indices count from 0, but train of client 1 has -1"),
        ({"train": [[0], [10**30]]}, "indices count from 0, but train of client 1 has 1000"),
        ({"train": [[0], []]}, "client 1 has no examples in train; leave the client out, or give it some"),
        ({"train": [[0, 4], [4]]}, "the index 4 is in train of clients 0 and 1; one client has each training example"),
        ({"train": [[0, 4, 4], [1]]}, "the index 4 is in train of client 0 twice"),
        ({"train": [[0], [1]], "test": [[2, 2], [3]]}, "test of client 0 has the index 2 twice"),
        ({"train": [[0], [1]], "test": [[2]]}, "train has 2 clients and test 1; each client needs both"),
        ({"train": [[0], [1]], "pooled": 1}, "pooled must be true or false, but got 1"),
        ({"train": [[0], [1]], "pooled": True}, "with pooled true clients have test examples of their own"),
        ({"train": [[0], [1]], "test": [[1], [2]], "pooled": True}, "the index 1 is in train and in test"),
        ("{", "is not valid JSON"),
        ('{"train": {"0": [1], "0": [2]}}', "has the key '0' twice"),
        ("[" * 100_000, "is not valid JSON"),
        # Counting the keys one after another would take minutes.
        ("{" + ",".join(f'"{key}": 0' for key in (*range(60_000), 59_999)) + "}", "has the key '59999' twice"),
        # Looking for each client among all would, too.
        (json.dumps({"train": {str(client): [client] for client in range(1, 40_001)}}), "numbered from 0 to 39999"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_file_gets_one_sentence_with_its_path(saved, content, said):
    path = saved(content)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}:? .*{said}") as error:
        parse(f"file:{path}")
    assert "\n" not in str(error.value)


def test_test_examples_may_be_those_of_several_clients(saved):
    assert as_lists(read(saved({"train": TRAIN, "test": [[0, 1], [1]]})))[1] == [[0, 1], [1]]


def test_files_that_are_none_are_told(tmp_path):
    with pytest.raises(ValueError, match="There is no partition file .*nowhere.json; name a .json or .npz file"):
        parse(f"file:{tmp_path / 'nowhere.json'}")
    with pytest.raises(ValueError, match="is a folder, not a file; name a .json or .npz file"):
        parse(f"file:{tmp_path}")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ValueError, match="is not a regular file"):
        parse(f"file:{tmp_path / 'pipe.json'}")
    np.savez(tmp_path / "odd.npz", train_0=np.zeros(2), train_1=np.arange(2))
    with pytest.raises(ValueError, match=r"odd.npz has float64 of shape \(2,\) in train_0; indices are integers"):
        parse(f"file:{tmp_path / 'odd.npz'}")
    np.savez(tmp_path / "odd.npz", trian_0=np.arange(2))
    with pytest.raises(ValueError, match="has an array 'trian_0'; it holds train_0"):
        parse(f"file:{tmp_path / 'odd.npz'}")
    with pytest.raises(ValueError, match=r"saved to a file ending in \.json or \.npz, but got 'parts\.csv'"):
        write(Path("parts.csv"), Content([np.arange(2)]))


def test_a_partition_that_does_not_fit_the_dataset_is_told(saved):
    dealt = parse(f"file:{saved({'train': TRAIN, 'test': TEST})}")
    assert dealt.validate(2, 10, 8, 3) == [] and dealt.validate(2, 10, None, None) == []
    assert "has 2 clients: set clients to 2 or leave it out, but got 40" in dealt.validate(40, 10, 8, 3)[0]
    (said,) = dealt.validate(2, 10, 7, 3)
    assert "has the index 7 in train of client 1, but the dataset has 7 training examples, which count from 0" in said
    assert said.endswith('the file needs "pooled": true.')
    (said,) = dealt.validate(2, 10, 8, 2)
    assert "has the index 2 in test of client 1, but the dataset has 2 test examples" in said


def test_indices_of_test_examples_follow_those_of_training_examples(saved):
    drawn = parse(f"file:{saved({'train': TRAIN, 'test': TEST})}").draw(np.zeros(11, int), 2, 1, 0, num_test=3)
    assert [rows.tolist() for rows in drawn.test_indices] == [[8], [10, 9]]
    pooled = parse(f"file:{saved({'train': [[0, 9]], 'test': [[1, 10]], 'pooled': True})}")
    drawn = pooled.draw(np.zeros(11, int), 1, 1, 5, num_test=3)
    assert [drawn.indices[0].tolist(), drawn.test_indices[0].tolist()] == [[0, 9], [1, 10]]


def test_what_no_client_has_is_said(saved):
    dealt = parse(f"file:{saved({'train': TRAIN, 'test': TEST})}")
    assert dealt.describe_unused(8, 4) == (
        "The partition parts leaves 3 of 8 training examples and 1 of 4 test examples out."
    )
    assert parse(f"file:{saved({'train': TRAIN})}").describe_unused(5, 4) == ""
    pooled = parse(f"file:{saved({'train': [[0, 9]], 'test': [[1]], 'pooled': True})}")
    assert pooled.describe_unused(8, 4) == "The partition parts leaves 9 of 12 training and test examples out."


@pytest.mark.parametrize("suffix", ["json", "npz"])
@pytest.mark.parametrize("name", ["label-2", "dir-0.5", "shards-2", "iid", "region-2-0.5", "feature-shift"])
def test_what_data_show_saves_is_the_same_federation_when_it_is_read_again(tmp_path, name, suffix):
    dataset, path = load("digits", None), tmp_path / f"mine.{suffix}"
    code, text = call_bench("data", "show", "digits", name, "--clients", 8, "--seed", 1, "--save", path)
    assert code == 0, text
    before, after = (draw(parse(text), dataset, 8, seed) for text, seed in ((name, 1), (f"file:{path}", 2)))
    for mine, theirs in ((before.indices, after.indices), (before.test_indices or [], after.test_indices or [])):
        assert [rows.tolist() for rows in mine] == [rows.tolist() for rows in theirs]
    code, again = call_bench("data", "show", "digits", f"file:{path}")
    assert code == 0 and text.partition("Distance of")[0] == again.partition("Distance of")[0]


def test_data_show_says_what_a_saved_file_does_not_hold(tmp_path):
    path = tmp_path / "noisy.json"
    _, text = call_bench("data", "show", "digits", "noise-0.1", "--clients", 4, "--save", path)
    assert "noise-0.1 adds noise to images, which" in text and path.exists()
    code, text = call_bench("data", "show", "digits", "iid", "--save", tmp_path / "x.csv")
    assert code == 2 and "ending in .json or .npz" in text


def test_three_clients_of_pfllib_are_read_with_its_class_counts_once_the_file_says_pooled(saved):
    """Clients 0, 1 and 15 of PFLlib's Fashion-MNIST of 20 clients, Dir(0.1), and the labels of their examples."""
    found = json.loads(PFLLIB.read_text())
    path = saved(found["indices"], "pfllib.json")
    labels = np.full(70_000, -1)
    labels[found["rows"]] = found["labels"]
    with pytest.raises(ValueError, match='but the dataset has 60000 training examples.*needs "pooled": true'):
        parse(f"file:{path}").draw(labels, 3, 10, 0, num_test=10_000)
    dealt = parse(f"file:{saved(found['indices'] | {'pooled': True}, 'pfllib.json')}")
    drawn = dealt.draw(labels, 3, 10, 0, num_test=10_000)
    for key, rows in (("train", drawn.indices), ("test", drawn.test_indices)):
        assert [np.bincount(labels[own], minlength=10).tolist() for own in rows] == found["counts"][key]


def test_the_manual_makes_a_file_of_pfllib_readable(tmp_path, monkeypatch):
    from tests.support import manual

    monkeypatch.chdir(tmp_path)
    (tmp_path / "pfllib.json").write_text(json.dumps(json.loads(PFLLIB.read_text())["indices"]))
    (code,) = [block.text for block in manual.blocks("python") if "pfllib.json" in block.text]
    exec(code, {})
    content = parse("file:parts.json").content
    assert content.pooled and [len(rows) for rows in content.train] == [61, 240, 146]
    (example,) = [block.text for block in manual.blocks("text") if '"pooled"' in block.text]
    (tmp_path / "example.json").write_text(example)
    assert as_lists(read(tmp_path / "example.json")) == [[[0, 5, 7], [1, 2]], [[0], [3, 4]]]
