"""A session of Ray that was never started, for recorders."""

from bench.execution.fleet import Fleet
from bench.execution.recorder import Session

ALONE = Session(Fleet(None, print))
