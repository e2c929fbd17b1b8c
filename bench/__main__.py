"""`python -m bench`."""

from bench.cli.app import app

app()
