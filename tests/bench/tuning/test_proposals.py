"""What several studies propose to Ray Tune. Nothing here starts Ray."""

import pytest

from bench.results.store import Store
from bench.tuning.proposals import Proposals
from bench.tuning.study import Study
from bench.tuning.trainable import ConfigurationReport
from tests.support.searching import make


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path).locked() as store:
        yield store


def test_a_search_begins_when_the_one_before_has_nothing_left_to_propose(store):
    """What each of them proposes is what it proposes by itself."""
    searches = [make(name, searcher="random", samples=3, space="training") for name in ("fedprox", "fedavg")]
    alone = [[dict(study.propose().params) for _ in range(3)] for study in (Study(one, store) for one in searches)]
    for search in searches:
        (store.folder / "searches" / f"{search.name}.json").unlink()
    studies = [Study(search, store) for search in searches]
    proposals = Proposals({study.search.name: study for study in studies})
    suggested = [proposals.suggest(f"trial-{number}") for number in range(6)]
    assert [one["search"] for one in suggested] == [search.name for search in searches for _ in range(3)]
    assert [one["params"] for one in suggested] == [params for own in alone for params in own]
    assert proposals.suggest("trial-6") == "FINISHED"


def test_a_run_that_two_searches_propose_is_trained_by_one_at_a_time(store):
    studies = [Study(make(searcher="grid", scheduler=scheduler), store) for scheduler in ("none", "asha")]
    proposals = Proposals({study.search.name: study for study in studies})
    for number in range(4):
        proposals.suggest(f"trial-{number}")
    assert proposals.suggest("trial-4") is None, "it waits"
    report = ConfigurationReport(None, failed=False, round=9, value=0.5, is_last=True)
    proposals.on_trial_complete("trial-0", {"report": report})
    assert proposals.suggest("trial-4") == {"search": studies[1].search.name, "params": {"mu": 0.001}}
