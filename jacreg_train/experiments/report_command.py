"""The command line of `scripts/report.py`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jacreg_train.experiments.report_data import ReportError, load
from jacreg_train.telemetry.writers import replace_file

USAGE_ERROR = 2


def main(argv: Sequence[str]) -> int:
    """Make a report by a command line (without the program); returns the exit code."""
    parser = argparse.ArgumentParser(prog="report.py", description="Make one HTML page from local records.")
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="RUN",
        help="a run's workdir, a sweep's folder, a folder of these, a benchmark's JSON",
    )
    parser.add_argument("--output", type=Path, default=Path("report.html"), help="the page (report.html)")
    parser.add_argument("--title", default="Jacobian-regularised training", help="its heading")
    arguments = parser.parse_args(argv)
    try:
        contents = load(arguments.paths)
    except ReportError as error:
        print(f"report.py: {error}", file=sys.stderr)
        return USAGE_ERROR
    try:
        from jacreg_train.experiments.report_page import render
    except ModuleNotFoundError as error:
        print(f"report.py: {error.name} is missing: pip install 'jacreg[reports]'", file=sys.stderr)
        return USAGE_ERROR
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    replace_file(arguments.output, render(contents, title=arguments.title))
    size = arguments.output.stat().st_size / 2**20
    print(f"{arguments.output}: {len(contents.runs)} runs, {size:.1f} MiB; open it in any browser")
    return 0
