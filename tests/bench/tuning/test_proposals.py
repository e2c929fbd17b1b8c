"""What several studies propose to Ray Tune. Nothing here starts Ray."""

from dataclasses import replace

from bench.config.code_version import code_version
from bench.tuning.proposals import Proposals
from bench.tuning.study import Study
from bench.tuning.trainable import ConfigurationReport
from tests.support.earlier_code import earlier
from tests.support.searching import finish, make


def nothing_known(*about) -> None:
    raise AssertionError(about)


def test_a_search_begins_when_the_one_before_has_nothing_left_to_propose(store):
    """What each of them proposes is what it proposes by itself."""
    searches = [make(name, searcher="random", samples=3, space="training") for name in ("fedprox", "fedavg")]
    alone = [[dict(study.propose().params) for _ in range(3)] for study in (Study(one, store) for one in searches)]
    for search in searches:
        (store.folder / "searches" / f"{search.name}.json").unlink()
    studies = [Study(search, store) for search in searches]
    proposals = Proposals({study.search.name: study for study in studies}, nothing_known)
    suggested = [proposals.suggest(f"trial-{number}") for number in range(6)]
    assert [one["search"] for one in suggested] == [search.name for search in searches for _ in range(3)]
    assert [one["params"] for one in suggested] == [params for own in alone for params in own]
    assert proposals.suggest("trial-6") == "FINISHED"


def test_a_run_that_two_searches_propose_is_trained_by_one_at_a_time(store):
    studies = [Study(make(searcher="grid", scheduler=scheduler), store) for scheduler in ("none", "asha")]
    known = []
    proposals = Proposals({study.search.name: study for study in studies}, lambda *about: known.append(about))
    for number in range(4):
        proposals.suggest(f"trial-{number}")
    assert proposals.suggest("trial-4") is None, "it waits"
    first, second = (study.search for study in studies)
    finish(first, store, {"mu": 0.001}, 0.4, 0.6)
    report = ConfigurationReport(None, failed=False, round=9, value=0.5, is_last=True)
    proposals.on_trial_complete("trial-0", {"report": report})
    assert proposals.suggest("trial-4") is None and known == [(second.name, {"mu": 0.001}, 0.5)]
    proposals.on_trial_complete("trial-1", {"report": replace(report, failed=True)})
    proposed = {"search": second.name, "params": {"mu": 0.01}, "repeated": {}}
    assert proposals.suggest("trial-4") == proposed, "its runs have failed"
    assert [outcome.params for outcome in studies[1].outcomes()] == [{"mu": 0.001}]
    assert not (store.folder / "superseded").exists()


def test_runs_that_other_code_has_trained_are_written_beside_what_they_replace(store):
    """Also those of a configuration that a search comes to later: its checkpoints would lie in the finished run."""
    search = make(searcher="grid")
    first, second = ({"mu": value} for value in search.space["mu"].grid[:2])
    before = code_version(search.template) | {"engine": earlier(store, "engine", "bench/seeding.py", "seed_for")}
    finish(search, store, second, 0.9, 0.9, code=before)
    proposals = Proposals({search.name: Study(search, store)}, nothing_known)
    suggested = [proposals.suggest(f"trial-{number}") for number in range(2)]
    assert [one["params"] for one in suggested] == [first, second]
    runs = search.runs(second)
    assert suggested[0]["repeated"] == {}
    assert suggested[1]["repeated"] == {run: str(store.folder / "repeating" / run) for run in runs}


def test_what_was_stopped_before_its_last_round_is_not_complete(store, monkeypatch):
    study = Study(make(searcher="grid"), store)
    proposals, closed = Proposals({study.search.name: study}, nothing_known), []
    monkeypatch.setattr(study, "close", lambda trial, value, complete: closed.append((value, complete)))
    for number, rounds in enumerate((study.search.template.rounds, 1)):
        proposals.suggest(f"trial-{number}")
        report = ConfigurationReport(None, failed=False, round=rounds, value=0.5, is_last=True)
        proposals.on_trial_complete(f"trial-{number}", {"report": report})
    assert closed == [(0.5, True), (0.5, False)]
