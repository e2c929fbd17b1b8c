"""The checks of stored files follow from their types."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from bench.results.ids import is_run_id
from bench.results.json_schema import mismatch, shape_of


class Part(TypedDict, total=False):
    scores: dict[str, float]


class Stored(TypedDict):
    run: Annotated[str, is_run_id] | None
    seeds: list[int]
    std: Literal["population", "sample"]
    part: NotRequired[Part]
    options: NotRequired[dict[str, Any]]
    notes: NotRequired[list[str] | None]


GOOD = {
    "run": "0123456789abcdef",
    "seeds": [0],
    "std": "sample",
    "part": {"scores": {"accuracy": 0.5}},
    "options": {"mu": [1]},
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"run": None},
        {"part": {}},
        {"notes": None},
        {"notes": ["one"]},
        {"more": 1},
        {"options": {"base": "fedprox"}},
        {"options": {"name": "ccvr", "base": {"name": "fedavg"}}},
        {"options": {"callbacks": [{"name": "moved", "base": 2.0}]}},
    ],
)
def test_a_value_of_a_type_has_its_shape(change):
    assert mismatch(GOOD | change, shape_of(Stored)) == ""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"run": "../0123456789abc"}, "run is not what it should be"),
        ({"seeds": [0, 0.5]}, "seeds[1] is not an integer"),
        ({"seeds": {}}, "seeds is not a list"),
        ({"std": "both"}, "std is not what it should be"),
        ({"part": {"scores": {"accuracy": "high"}}}, "part.scores.accuracy is not a number"),
        ({"options": {"mu": "\x1b[2J"}}, "options is not what it should be"),
        *(({"notes": [f"fed{turn}gva"]}, "notes[0] is not a text") for turn in "\u202a\u202e\u2066\u2069"),
        ({"options": {"name": "ccvr", "base": "fedavg"}}, "options is not what it should be"),
        ({"options": {"base": {"mu": 1}}}, "options is not what it should be"),
        ({"options": {"name": "ccvr", "base": 2.0}}, "options is not what it should be"),
        ({"notes": [None]}, "notes[0] is not a text"),
    ],
)
def test_a_value_of_another_type_is_named(change, what):
    assert mismatch(GOOD | change, shape_of(Stored)) == what


def test_a_required_key_is_missed():
    assert mismatch({key: GOOD[key] for key in ("run", "std")}, shape_of(Stored)) == "seeds is missing"
    assert mismatch([], shape_of(Stored)) == "it is not a JSON object"
