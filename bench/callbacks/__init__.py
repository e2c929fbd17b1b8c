"""Callbacks by name, one file each: what looks at a run after each round. To add one: write its file; `registered_callback`
gives its class a name.

    from bench.callbacks import Callback, Noted, RoundOutcome, registered_callback
"""

from bench.registry import registered_callback
from bench.simulation.callbacks import REGISTRY, Callback, Noted, RoundOutcome

__all__ = ["REGISTRY", "Callback", "Noted", "RoundOutcome", "registered_callback"]
