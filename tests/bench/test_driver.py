"""What surrounds the runs of a grid."""

import pytest
import torch

from bench.driver import tidy
from bench.folders import Folder
from bench.store import Store
from tests.bench.test_store import CONFIG, play


@pytest.mark.parametrize("place", ["memory://shared", "disk"])
def test_only_runs_that_go_on_keep_their_folders_in_a_storage(tmp_path, place):
    storage = Folder(place if "://" in place else tmp_path / "shared")
    for run_id in ("ended", "repeated", "going", "removed"):
        (storage / run_id / "checkpoint").save("checkpoint.pt", torch.zeros(1))
    with Store(tmp_path / "results").locked() as store:
        play(store, "ended")
        play(store, "repeated")
        store.start("repeated", CONFIG)
        store.start("going", CONFIG)
        tidy(storage, store)
    assert storage.folders() == ["going", "repeated"]
    assert (storage / "going" / "checkpoint").names() == ["checkpoint.pt"]
    assert Folder(tmp_path / "nowhere").folders() == []
