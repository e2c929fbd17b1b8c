"""Losses of the heads of encoders, as a run's probe has them."""

import json

EXCHANGE = {"kind": "encoder-heads", "examples": "exchange", "decoder_width": 256}
POOLED = EXCHANGE | {"examples": "pooled"}
SIX = {  # as measured: of an encoder on the images of its own client, and of the other one
    "fe1-own": (0.0235, 0.07),
    "fe1-exchange": (0.03, 0.09),
    "fe2-own": (0.0007, 0.0796),
    "fe2-exchange": (0.2, 0.06),
}
SEVEN = {"fe1": (0.1, 0.08), "fe2": (0.2, 0.09), "favg": (0.3, 0.08), "fe": (0.05, 0.1)}
COUNTS = {"n_train": 50_000, "n_test": 9_000, "n_classes": 10}


def write_probe(store, cell: dict, name: str, result: dict) -> None:
    """A measurement beside the record of a cell's run."""
    path = store.folder / "runs" / cell["run"] / f"probe-{name}.json"
    path.write_text(json.dumps({"version": 1, "result": {"classes": ["coat"], **result}}))
