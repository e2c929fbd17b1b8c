"""Which configurations are stopped early. Nothing here starts Ray."""

from types import SimpleNamespace

from bench.tuning.early_stopping import PerSearch, asha
from bench.tuning.study import Study
from tests.support.searching import make, try_next


def test_after_a_restart_a_configuration_is_still_compared_with_those_that_were_tried_before(store):
    search = make(scheduler="asha", searcher="random", samples=5)
    (study := Study(search, store)).propose()
    late, bad = SimpleNamespace(trial_id="new"), {"round": 1, "value": 0.1}
    fresh = asha(study)
    fresh.on_trial_add(None, late)
    assert fresh.on_trial_result(None, late, bad) == "CONTINUE"
    for score in (0.5, 0.6, 0.7):
        try_next(study, store, score, score)
    again = asha(Study(search, store))
    again.on_trial_add(None, late)
    assert again.on_trial_result(None, late, bad) == "STOP"


def test_configurations_are_compared_with_those_of_their_own_search_only(store):
    studies = [Study(make(name, scheduler="asha", searcher="random", samples=3), store) for name in ("fedprox", "moon")]
    scheduler = PerSearch({study.search.name: study for study in studies})

    def decide(study: Study, trial_id: str, value: float) -> str:
        trial = SimpleNamespace(trial_id=trial_id, config={"search": study.search.name})
        scheduler.on_trial_add(None, trial)
        return scheduler.on_trial_result(None, trial, {"round": 1, "value": value})

    one, other = studies
    assert [decide(one, f"one-{number}", 0.9) for number in range(3)] == ["CONTINUE"] * 3
    assert decide(other, "other", 0.1) == "CONTINUE"
    assert decide(one, "late", 0.1) == "STOP"
