"""The program: from a grid of experiments to its table."""

__version__ = "0.1.0"
