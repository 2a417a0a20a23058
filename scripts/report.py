"""Make one self-contained HTML page: python scripts/report.py runs/a runs/sweeps/digits benchmark.json

Give it workdirs of runs, folders of sweeps, folders that hold such, or benchmark files.
"""

import sys

from jacreg_train.experiments.report_command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
