"""`python -m bench.speed`."""

import sys

from bench.speed.main import main

main(sys.argv[1:])
