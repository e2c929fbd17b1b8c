"""Event files: what TensorBoard finds in them."""

import struct

import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

from bench.results.omitted_defaults import SETTINGS
from bench.results.tensorboard import NAME, name_runs, write_events

CONFIG = {
    "algorithm": {"name": "ccvr", "relu": True, "base": {"name": "fedprox", "mu": 0.1}},
    "dataset": "digits",
    "partition": "dir-0.5",
    "seed": 3,
    "lr": 0.1,
    "versions": {"algorithm": 1},
}
ROWS = [
    {"round": 1, "bytes_up": 10.0, "loss": float("nan"), "seconds": 0.5},
    {"round": 2, "bytes_up": 20.0, "accuracy": 0.25, "seconds": 1.5, "local_models": {"clients": [1]}},
]


def read(path) -> list[Event]:
    """The records of an event file: length, its checksum, content, its checksum."""
    data, events = path.read_bytes(), []
    while data:
        (length,), content = struct.unpack("<Q", data[:8]), data[12 : 12 + struct.unpack("<Q", data[:8])[0]]
        for part, given in ((data[:8], data[8:12]), (content, data[12 + length : 16 + length])):
            crc = crc32c(part)
            assert struct.unpack("<I", given)[0] == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
        events.append(Event.FromString(content))
        data = data[16 + length :]
    return events


def test_every_number_of_every_round_is_at_its_step_and_time(tmp_path):
    path = write_events(tmp_path, CONFIG, ROWS, "2026-01-01T12:00:00+0000")
    version, config, _, *rounds = read(path)
    assert (
        version.file_version == "brain.Event:2"
        and b'"dataset": "digits"' in config.summary.value[0].tensor.string_val[0]
    )
    assert [event.step for event in rounds] == [1, 2]
    assert [event.wall_time for event in rounds] == [1767268800.5, 1767268801.5]
    found = [{value.tag: value.simple_value for value in event.summary.value} for event in rounds]
    assert found[0] == {"bytes_up": 10.0, "loss": pytest.approx(float("nan"), nan_ok=True)}
    assert found[1] == {"bytes_up": 20.0, "accuracy": 0.25}


def test_times_that_records_of_others_do_not_have_are_left_out(tmp_path):
    *_, round = read(write_events(tmp_path, CONFIG, [{"round": 1, "seconds": None, "loss": 1.0}], "yesterday"))
    assert (round.wall_time, round.summary.value[0].simple_value) == (0.0, 1.0)


def test_settings_and_options_are_hyperparameters_and_final_accuracies_their_metrics(tmp_path):
    """What the tab HPARAMS shows: the start of a session, and the last value of every number."""
    _, _, event, *rounds = read(write_events(tmp_path, CONFIG, ROWS, "2026-01-01T12:00:00+0000"))
    (value,) = event.summary.value
    assert (value.tag, value.metadata.plugin_data.plugin_name) == ("_hparams_/session_start_info", "hparams")
    session = HParamsPluginData.FromString(value.metadata.plugin_data.content).session_start_info
    found = {key: getattr(one, one.WhichOneof("kind")) for key, one in session.hparams.items()}
    options = {"ccvr.relu": True, "base": "fedprox", "fedprox.mu": 0.1}
    data = {"dataset": "digits", "partition": "dir-0.5", "partition_kind": "dir", "concentration": 0.5}
    later = {key: value for key, value in SETTINGS.items() if value not in ([], None)}  # configs leave them out
    assert found == {"algorithm": "ccvr", "seed": 3, "lr": 0.1, "versions": "algorithm 1"} | later | options | data
    assert session.start_time_secs == 1767268800
    assert {one.tag for one in rounds[-1].summary.value} == {"accuracy", "bytes_up"}


def test_the_file_has_a_name_that_tensorboard_knows_and_the_same_bytes_each_time(tmp_path):
    path = write_events(tmp_path, CONFIG, ROWS, None)
    assert path.name == NAME and "tfevents" in NAME
    first = path.read_bytes()
    write_events(tmp_path, CONFIG, ROWS, None)
    assert [path.name for path in tmp_path.iterdir()] == [NAME] and path.read_bytes() == first


def test_runs_have_readable_names_below_their_grid(tmp_path):
    for run in ("a" * 16, "b" * 16):
        (tmp_path / "runs" / run).mkdir(parents=True)
        (tmp_path / "runs" / run / NAME).write_text(run)
    for run in ("a" * 16, "b" * 16, "b" * 16):  # the second time other settings have the name
        name_runs(tmp_path, "mine@small", {run: "digits label-2 fedavg w/ mu=1 seed 0"})
        (named,) = (tmp_path / "tensorboard" / "mine@small").iterdir()
        assert named.name == "digits label-2 fedavg w_ mu=1 seed 0" and (named / NAME).read_text() == run
    name_runs(tmp_path, "mine@small", {"c" * 16: "digits label-2 fedavg w/ mu=1 seed 0", "d" * 16: "other"})
    assert not [*named.parent.iterdir()], "no link leads to a run that is not there"
    name_runs(tmp_path, "mine@small", {"b" * 16: "digits label-2 fedavg w/ mu=1 seed 0"})
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    assert (moved / "tensorboard" / "mine@small" / named.name / NAME).exists(), "results may be moved"


def test_without_links_there_are_no_names(tmp_path):
    (tmp_path / "tensorboard").write_text("no folder")
    (tmp_path / "runs" / ("a" * 16)).mkdir(parents=True)
    name_runs(tmp_path, "mine@small", {"a" * 16: "digits"})
    assert (tmp_path / "tensorboard").read_text() == "no folder"
