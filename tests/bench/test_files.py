"""YAML that somebody else may have written, paths for people, and files that are replaced in one step."""

import os
import time

import pytest
import yaml

from bench.files import parse_yaml, path_in_words, replacing, write_file


def of_aliases(first: str, form: str, levels: int = 30) -> str:
    """Values of which each names the one before nine times: the last one stands for 9^levels."""
    lines = [f"a0: &a0 {first}"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} " + form.format(", ".join([f"*a{level - 1}"] * 9)))
    return "\n".join(lines)


@pytest.mark.slow_but_first
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (of_aliases("[x]", "[{}]"), "more than 20,000 values, where an alias counts as all that it stands for"),
        (of_aliases("{x: 1}", "{{<<: [{}]}}"), "more than 20,000 values"),
        ("[" + "1," * 20_000 + "]", "more than 20,000 values"),
        ("axes: &a {seed: [*a]}", "a value holds itself by an alias"),
        ("[" * 2_000, "nested too deeply"),
        (f"seed: {'9' * 5000}", "a number has 5,000 characters"),
        (f"seed: 1{':1' * 100_000}", "a number has 200,001 characters"),
        (f"mu: 1{':1' * 50_000}.5", "a number has 100,003 characters"),
        ("title: 2001-99-99", "month must be in 1..12"),
        ("{" + "".join(f"k{i}: 1, " for i in range(5_000)) + "k7: 1}", "the key k7 is there twice"),
    ],
    ids=["lists", "merged", "long", "itself", "deep", "digits", "base-60", "base-60-float", "date", "key-twice"],
)
def test_a_short_text_that_would_fill_the_memory_is_refused(text, said):
    with pytest.raises(yaml.YAMLError, match=said):
        parse_yaml(text)


@pytest.mark.parametrize("text", ["batch_size: 010", "seeds: [-07]", "local_epochs: 12:30:00", "lr: 1:30.5"])
def test_a_number_that_yaml_reads_to_another_base_is_refused(text):
    with pytest.raises(yaml.YAMLError, match="is no decimal number; quote it, or write it without zeros in front"):
        parse_yaml(text)
    assert parse_yaml("[0, 0.5, 10, 1_000, 1e-3, '010', -0.0]") == [0, 0.5, 10, 1000, 0.001, "010", 0.0]


def test_aliases_and_long_texts_are_read():
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]\nc: {<<: &c {x: 1}, y: 2}\nd: *c") == {
        "a": [1, 2],
        "b": [[1, 2], [1, 2]],
        "c": {"x": 1, "y": 2},
        "d": {"x": 1},
    }
    assert parse_yaml(f"'{'9' * 5000}'") == "9" * 5000, "a text may have any length"
    assert len(parse_yaml("[" + "1," * 15_000 + "]")) == 15_000


def test_a_path_for_people_starts_at_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert path_in_words(tmp_path / "results" / "a.md") == path_in_words("results/a.md") == "results/a.md"
    assert path_in_words(tmp_path.parent / "a.md") == str(tmp_path.parent / "a.md")
    assert path_in_words("../a.md") == "../a.md"


def test_two_programs_replace_a_file_at_once(tmp_path):
    """As where a table is asked for while a run that has just ended writes it."""
    path = tmp_path / "table.md"
    with replacing(path) as first:
        first.write_text("first")
        with replacing(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first" and os.listdir(tmp_path) == ["table.md"]


def test_what_killed_programs_have_left_is_removed_after_an_hour(tmp_path):
    left = [tmp_path / f".{name}.partial" for name in ("table.md.1", "table.md.2", "tables.md.1")]
    for path in left:
        path.write_text("half of a table")
    os.utime(left[0], (time.time() - 3700,) * 2)
    write_file(tmp_path / "table.md", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"table.md", left[1].name, left[2].name}
