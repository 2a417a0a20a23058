"""Run a sweep: python scripts/sweep.py --sweep=configs/sweeps/digits.yaml --workers=2

The sweep file follows W&B's sweep schema. Nothing else is needed by default: trials are queued in an sqlite
database in the sweep's folder, and the same command goes on where a stopped or killed one was.
Further flags of the form --config.FIELD=VALUE go to every trial.
"""

import sys

from jacreg_train.experiments.sweep_command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
