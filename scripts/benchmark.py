"""Measure every way to the gradient of a Jacobian penalty beside the plain gradient: python scripts/benchmark.py

Writes runs/benchmark/benchmark.json, benchmark.md and pictures. What was measured before on the same device and
versions is kept: with --only=REGEX parts can be measured one by one (--list names them). --quick takes minutes.
"""

import sys

from bench.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv))
