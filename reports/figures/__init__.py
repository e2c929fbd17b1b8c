"""Figures of grids. A kind is one class in a file of its own, `@registered_figure("name")`; other files are what kinds share.

`Figure` says what a kind has. Kinds are found by name without importing their files, those of labs, too (`bench.registry`).
"""

from bench.config.parts import Round, one_of
from bench.measurements.specs import Probe, rounds_of
from bench.registry import registered_figure
from reports.figures.base import Figure

__all__ = ["Figure", "Probe", "Round", "one_of", "registered_figure", "rounds_of"]
