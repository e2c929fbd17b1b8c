"""Methods whose clients keep a part of the model: what of two of them is compared."""

from dataclasses import replace

import torch

from tests.support.toy import assert_equal


def bodies_and_heads(state):
    body = {
        name: leaf for name, leaf in state["params"].items() if not name.startswith(("classifier.", "gpfl.", "gate."))
    }
    rows = {client: row.get("params", row) for client, row in state["clients"]["rows"].items()}
    heads = {
        client: {name: row[name] for name in row if name.startswith("classifier.")} for client, row in rows.items()
    }
    return {"body": body, "heads": heads}


def assert_same_deployed(task, method, state, other, expected):
    """Whoever fits its head before: at least one client has been absent from all rounds."""
    assert len(state["clients"]["rows"]) < 5
    for who in ("absent", "none", "all"):
        pairs = ((method, state), (other, expected))
        assert_equal(
            *(replace(one, fit_private=who).deploy(task, after, torch.arange(5)).params for one, after in pairs)
        )
