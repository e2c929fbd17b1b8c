"""The rounds of a run as an event file of TensorBoard, which then reads them from the results directory."""

import contextlib
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.files import file_name, replacing
from bench.results.records import Config

FOLDER = "tensorboard"
NAME = "events.out.tfevents.0.skewbench"  # TensorBoard knows its files by the third word
_WRITTEN = "%Y-%m-%dT%H:%M:%S%z"  # how records have the time


def write_events(folder: Path, config: Config, rows: Sequence[Mapping[str, Any]], started: str | None) -> Path:
    """Writes every number of every round, the config as a text, and settings and options as hyper-parameters, to the folder's
    event file, in one step.

    The same rounds make the same bytes. The run's other files hold all of it as well.

    Args:
        folder: of the run; must exist.
        rows: the rounds of the run; "round" is the step, "seconds" tells when it was.
        started: when the run began, as its record has it; None if it is not known.
    """
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter
    from tensorboardX.summary import text

    from bench.results.columns import measured

    begin = 0.0
    with contextlib.suppress(ValueError, OverflowError):  # records of others may hold any text
        begin = datetime.datetime.strptime(started or "", _WRITTEN).timestamp()
    shown = "\n".join(f"    {line}" for line in json.dumps(config, indent=1).splitlines())  # code, in Markdown
    events = [
        Event(wall_time=begin, file_version="brain.Event:2"),
        Event(wall_time=begin, summary=text("config", shown)),
        Event(wall_time=begin, summary=_session(config, begin)),
    ]
    for row in rows:
        values = [
            Summary.Value(tag=key, simple_value=value)
            for key, value in measured(row).items()
            if key not in ("round", "seconds")
        ]
        time = begin + (row.get("seconds") or 0.0)
        events.append(Event(wall_time=time, step=row["round"], summary=Summary(value=values)))
    path = folder / NAME
    with replacing(path) as partial:
        writer = RecordWriter(str(partial))
        for event in events:
            writer.write(event.SerializeToString())
        writer.close()
    return path


def _session(config: Config, begin: float) -> Any:
    """What the tab HPARAMS shows of a run beside the last value of every number: its settings and options. TensorBoard finds
    out by itself which of them the runs that it shows have."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionStartInfo
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

    from bench.results.columns import described

    session = SessionStartInfo(start_time_secs=begin)
    for key, value in described(config).items():
        if isinstance(value, bool):
            session.hparams[key].bool_value = value
        elif isinstance(value, int | float) and abs(value) <= sys.float_info.max:
            session.hparams[key].number_value = value
        elif isinstance(value, str):
            session.hparams[key].string_value = value
    content = HParamsPluginData(session_start_info=session).SerializeToString(deterministic=True)
    plugin = SummaryMetadata.PluginData(plugin_name="hparams", content=content)
    named = Summary.Value(tag="_hparams_/session_start_info", metadata=SummaryMetadata(plugin_data=plugin))
    return Summary(value=[named])


def name_runs(results: Path, label: str, names: Mapping[str, str]) -> None:
    """Makes `tensorboard/<label>/<name>` in a results directory a link to the folder of each run: TensorBoard shows runs by
    the names of folders. Runs that are not there get none, and file systems without links do without.

    Args:
        label: of the grid, `<grid>@<budget>`.
        names: run id -> name for people.
    """
    folder = results / FOLDER / label
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        for run, name in names.items():
            link = folder / file_name(name)
            there = (results / "runs" / run).is_dir()
            if link.is_symlink() and (link.readlink().name != run or not there):  # other settings have that name now
                link.unlink()
            if there and not link.is_symlink():
                link.symlink_to(Path("..", "..", "runs", run), target_is_directory=True)
