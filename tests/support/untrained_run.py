"""A run that was not trained: its config, rounds and record."""

from bench.config.resolve import resolve
from bench.results.ids import hash_of

CONFIG = resolve({"algorithm": "fedavg", "dataset": "digits", "partition": "iid"}).canonical()
RUN = hash_of(CONFIG)
ROWS = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.6}]
RECORD = {"id": RUN, "status": "done", "summary": dict.fromkeys(("last", "best", "last10"), {"accuracy": 0.6})}
