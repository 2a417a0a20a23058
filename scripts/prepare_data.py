"""Prepares a data set for training: see `python scripts/prepare_data.py --help`."""

import sys

from jacreg_train.data.prepare import main

if __name__ == "__main__":
    sys.exit(main())
