"""Choices of searches that were not made."""


def choice(mu: float, tried: int = 4, **changes) -> dict:
    """What a search has chosen, as a cell has it."""
    facts = {
        "metric": "accuracy",
        "share": 0.15,
        "seeds": [0, 1],
        "searcher": "random",
        "scheduler": "none",
        "alike": 1,
    }
    space = {"mu": "0.001 to 10 (log)"}
    return {"hparams": {"mu": mu}, "score": 0.6, "tried": tried, "space": space, "search": "s", **facts} | changes
