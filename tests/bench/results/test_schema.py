"""Types of stored files and the checks of these files name the same keys."""

import pytest

from bench.results import records, schema


@pytest.mark.parametrize(
    ("type_", "shape"),
    [
        (records.RunRecord, schema._RECORD),
        (records.Summary, schema._SUMMARY),
        (records.DataSource, schema._RECORD["data?"]),
        (records.StoredGrid, schema._GRID),
        (records.StoredCell, schema._CELL),
        (records.ChosenParams, schema._TUNED),
        (records.StoredLayout, schema._LAYOUT),
        (records.StoredMirrors, schema._GRID["mirrors"][0]),
        (records.StoredSearch, schema._SEARCH),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_required_key_is_checked_and_every_checked_key_has_a_type(type_, shape):
    required = {key for key in shape if not key.endswith("?")}
    assert type_.__required_keys__ == required
    assert {key.removesuffix("?") for key in shape} - required <= type_.__optional_keys__
