"""The command line of `scripts/sweep.py`."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jacreg_train.experiments.sweep_file import SweepError, read_sweep

DESCRIPTION = """Run a sweep over training runs.

The sweep file follows W&B's sweep schema. The same command goes on where a stopped or killed one was.
Further flags of the form --config.FIELD=VALUE go to every trial."""
USAGE_ERROR = 2


def main(argv: Sequence[str]) -> int:
    """Run a sweep by a command line (without the program); returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sweep.py", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sweep", required=True, metavar="FILE", help="the sweep file")
    parser.add_argument("--config", metavar="FILE", help="base config; by default the one of the file's command")
    parser.add_argument("--workdir", type=Path, help="the sweep's folder (runs/sweeps/NAME)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (2)")
    parser.add_argument("--trials", type=int, help="number of trials; by default the file's run_cap, or the grid")
    parser.add_argument("--seed", type=int, default=0, help="of the random choices (0)")
    parser.add_argument("--storage", help="database address for many machines (sqlite in the folder)")
    parser.add_argument("--engine", choices=("optuna", "wandb"), default="optuna", help="who hands out trials")
    parser.add_argument("--check", action="store_true", help="check the file against the config, run nothing")
    arguments, extra = parser.parse_known_args(argv)
    for flag in extra:
        if not flag.startswith("--config.") or "=" not in flag:
            parser.error(f"{flag!r}: flags for the trials have the form --config.FIELD=VALUE")
    for name in ("workers", "trials"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            parser.error(f"--{name} = {getattr(arguments, name)}: must be at least 1")
    try:
        return _run(arguments, extra)
    except SweepError as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("sweep.py: stopped; the same command goes on from here", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: argparse.Namespace, extra: Sequence[str]) -> int:
    sweep = read_sweep(arguments.sweep)
    base_flags = [*sweep.flags, *extra]
    if arguments.config is not None:
        base_flags = [
            f"--config={arguments.config}",
            *(f for f in base_flags if not f.startswith("--config=")),
        ]
    # Imported late, so that a mistake in the file is answered at once.
    from jacreg_train.experiments.sweep_check import check_sweep

    check_sweep(sweep, base_flags)
    if arguments.check:
        print(f"{arguments.sweep}: fits the config")
        return 0
    folder = arguments.workdir or Path("runs/sweeps") / sweep.name
    if arguments.engine == "wandb":
        from jacreg_train.experiments.sweep_wandb import run_agent

        run_agent(sweep, folder, base_flags=base_flags, num_trials=arguments.trials)
        return 0
    from jacreg_train.experiments.sweep_launch import launch

    summary = launch(
        sweep,
        folder,
        base_flags=base_flags,
        num_workers=arguments.workers,
        storage=arguments.storage,
        num_trials=arguments.trials,
        seed=arguments.seed,
    )
    return 0 if summary["best"] else 1
