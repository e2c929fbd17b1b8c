"""Sentences about names that do not exist."""

import pytest
from pydantic import BaseModel, ValidationError

from bench.errors import in_short, require_known, sentences, suggestion, unknown


@pytest.mark.parametrize(
    ("got", "known", "said"),
    [
        ("fedporx", ["fedavg", "fedprox", "fedopt"], "'fedprox'"),
        ("fedam", ["fedsam", "fedams", "fedavg"], "'fedams' or 'fedsam'"),
        ("ab", ["abz", "aby", "abx", "abw"], "'abz' or 'aby' or 'abx'"),
        ("fedporx", ["fedprox", "fedprox"], "'fedprox'"),
        ("Fed-Avg", ["fedavg", "fedavgm"], "'fedavg'"),
    ],
)
def test_the_nearest_names_are_suggested_and_of_equally_near_ones_first_what_begins_alike(got, known, said):
    assert suggestion(got, known) == f" Did you mean {said}?"


def test_nothing_is_suggested_where_no_name_is_near():
    assert suggestion("quite-another", ["fedavg", "moon"]) == ""


def test_in_short_an_error_names_nothing_that_is_known():
    both = f"{unknown('metric', 'foo', ['mb_to_0.8', 'accuracy'])}\n{unknown('seed', 'one', ['1'])} Name another."
    assert in_short(ValueError(both)) == "Unknown metric 'foo'. Unknown seed 'one'. Name another."


def test_names_may_be_numbers_and_methods_with_options():
    known = [5, 10, {"name": "fedprox", "mu": 0.1}]
    require_known("column", [10, {"mu": 0.1, "name": "fedprox"}], known)
    with pytest.raises(ValueError, match=r"^Unknown column '7'\. Known: 5, 10, \{'name': 'fedprox', 'mu': 0.1\}\.$"):
        require_known("column", [7], known)


def test_of_very_many_names_only_the_nearest_is_said():
    many = [f"name{number}" for number in range(40)]
    assert unknown("name", "nam39", many) == "Unknown name 'nam39'. Did you mean 'name39'?"
    assert unknown("name", "nam39", many[20:]).endswith("Known: " + ", ".join(many[20:]) + ".")
    assert "Known: name0, name1" in unknown("name", "xyz", many), "where none is near, all are"


def test_a_wrong_item_of_a_list_is_told_once_and_a_value_of_several_types_with_all_of_them():
    class Asked(BaseModel):
        seeds: list[int]
        clusters: int | list[int] = 1

    def told(**given) -> list[str]:
        with pytest.raises(ValidationError) as caught:
            Asked(**given)
        return sentences(caught.value)

    wrong = "x"
    assert [line.split(" must ")[0] for line in told(seeds=[wrong, wrong])] == ["seeds.0", "seeds.1"]
    assert told(seeds=[1], clusters=wrong) == ["clusters must be a number, a list, but got 'x'."]
