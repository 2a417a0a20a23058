"""Command line: train a model by a config and flags.

    jacreg-train --config=configs/digits_cnn.py --workdir=runs/a --config.jacobian.weight=1e-3

--config is a config file, one that comes with the package (configs/NAME.py, found from any folder), or the
config.json of an earlier run. Every field of configs/default.py can be given as --config.FIELD=VALUE; None
unsets an optional one. --workdir holds the run's config, metrics and checkpoints, and a run in it is
resumed; runs/NAME by default.

Several processes train one model together with --coordinator_address=HOST:PORT, --num_processes and
--process_id (from 0), or with --distributed where JAX can read these from the cluster (SLURM, Open MPI, ...).

Exit codes: 0 done; 2 a mistake in config, data or workdir (one line on standard error); 1 the loss, a
gradient or an update became infinite or nan, the workdir can no longer be written (both one line), or a
failure of the program; 143 after SIGTERM and 130 after Ctrl-C, both with a checkpoint
(a second Ctrl-C stops at once).
"""

import difflib
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

import configs
from configs import default

DEFAULT_CONFIG = "configs/digits_cnn.py"
USAGE_ERROR = 2


def main(argv: Sequence[str]) -> int:
    """Train by a command line, program first; returns the exit code."""
    if {"--help", "-help", "-h", "--helpfull", "--helpshort"} & set(argv[1:]):
        print(__doc__)
        return 0
    try:
        processes, parsed_argv = process_flags(argv)
        config, overridden, workdir = parse(parsed_argv)
    except (AttributeError, KeyError, flags.Error, ValueError, TypeError, OSError, SyntaxError, ImportError) as error:
        return _refuse(misnamed_field(argv) or error)

    # Imported late, so that a mistake in the command line is answered at once.
    from jacreg_train.data import DataError
    from jacreg_train.training.devices import start_up
    from jacreg_train.training.errors import ConfigError, Diverged, Interrupted, WorkdirError
    from jacreg_train.training.loop import train_and_evaluate
    from jacreg_train.training.out_of_memory import OutOfMemory
    from jacreg_train.training.processes import connect
    from jacreg_train.training.validation import check_overrides

    logging.getLogger("absl").addFilter(_is_no_account_of_orbax)
    try:
        connect(**processes)
        start_up(compilation_cache=config.compilation_cache, workdir=workdir)
        check_overrides(config, overridden)
        train_and_evaluate(config, workdir, argv=argv)
    except (ConfigError, DataError) as error:
        return _refuse(error)
    except (Diverged, WorkdirError) as error:
        print(f"jacreg-train: {error}", file=sys.stderr)
        return 1
    except OutOfMemory as error:
        print(f"jacreg-train: {error}", file=sys.stderr)
        return 1
    except Interrupted as stop:
        print(f"jacreg-train: {stop}; the same command goes on from there", file=sys.stderr)
        return stop.exit_code
    return 0


def process_flags(argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The flags that join several processes, by name, and the rest of the command line.

    Raises:
      absl.flags.Error: a value that is no number.
    """
    values = flags.FlagValues()
    flags.DEFINE_string("coordinator_address", None, "host:port of the first process", flag_values=values)
    flags.DEFINE_integer("num_processes", None, "how many take part", flag_values=values)
    flags.DEFINE_integer("process_id", None, "which one this is, from 0", flag_values=values)
    flags.DEFINE_bool("distributed", False, "read all three from the cluster", flag_values=values)
    argv = [argv[0], *flags.FLAGS.read_flags_from_files(list(argv[1:]), force_gnu=False)]  # --flagfile
    rest = values(argv, known_only=True)
    return {name: values[name].value for name in values}, rest


def parse(argv: Sequence[str]) -> tuple[ConfigDict, list[str], Path]:
    """The config, the dotted names of the fields that the command line overrides, and the work directory.

    Raises:
      absl.flags.Error, ValueError, TypeError, AttributeError, KeyError, OSError, SyntaxError, ImportError: what
        the flags refuse, or the config file's own mistakes.
    """
    argv = [argv[0], *flags.FLAGS.read_flags_from_files(list(argv[1:]), force_gnu=False)]  # --flagfile
    for name in ("config", "workdir"):
        if "" in _values(argv, name):
            raise ValueError(f"--{name} has no value; give one, or leave the flag out")
    given = _values(argv, "config")
    chosen = given[-1] if given else DEFAULT_CONFIG
    rest = _without(argv, "config")
    full = [rest[0], f"--config={_config_file(chosen)}", *rest[1:]]

    values = flags.FlagValues()
    for kind, parser in OPTIONAL_PARSERS.items():
        config_flags.register_flag_parser_for_type(kind, parser)
    sys.modules.pop("config_config", None)  # ml_collections would load the file over the one before it
    config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=full)
    flags.DEFINE_string("workdir", None, "the run's folder", flag_values=values)
    try:
        left = values(full)
    except AttributeError as error:
        if "get_config" in str(error):
            raise ValueError(f"--config={chosen}: the file has no function get_config()") from None
        raise
    if left[1:]:
        raise ValueError(f"{left[1]!r} is no flag; flags are --config, --config.FIELD=VALUE and --workdir")
    config = values["config"].value
    overridden = list(config_flags.get_override_values(values["config"]))
    return config, overridden, Path(values["workdir"].value or _default_workdir(chosen))


def _optional(parser: Any, choices: str) -> Any:
    """A flag parser that takes None, for optional fields; whether a field may be None is validated later."""

    class Optional(type(parser)):  # type: ignore[misc]
        def parse(self, argument: Any) -> Any:
            if argument in ("None", "none"):
                return None
            try:
                return super().parse(argument)
            except (TypeError, ValueError):
                raise ValueError(f"choose {choices}") from None

    return Optional()


OPTIONAL_PARSERS = {
    float: _optional(flags.FloatParser(), "a number"),
    int: _optional(flags.IntegerParser(), "an integer"),
    str: _optional(flags.ArgumentParser(), "a text"),
    bool: _optional(flags.BooleanParser(), "true or false"),
}


def _values(argv: Sequence[str], name: str) -> list[str]:
    """The values given to the flag ``--name``, as ``--name=value`` or ``--name value``."""
    values = []
    for index, argument in enumerate(argv):
        flag, equals, value = argument.partition("=")
        if flag in (f"--{name}", f"-{name}"):
            values.append(value if equals else argv[index + 1] if index + 1 < len(argv) else "")
    return values


def _without(argv: Sequence[str], name: str) -> list[str]:
    kept, skip = [], False
    for argument in argv:
        if skip:
            skip = False
        elif argument in (f"--{name}", f"-{name}"):
            skip = True
        elif not argument.startswith((f"--{name}=", f"-{name}=")):
            kept.append(argument)
    return kept


def _config_file(chosen: str) -> str:
    """What ml_collections loads: a config file, the packaged one of that name, or a recorded config."""
    packaged = Path(configs.__file__).parent
    path, colon, argument = chosen.partition(":")
    if path.endswith(".json"):
        if not Path(path).is_file():
            raise ValueError(f"--config={chosen}: there is no such file")
        return f"{packaged / 'recorded.py'}:{path}"
    for candidate in (Path(path), packaged / path.removeprefix("configs/")):
        if candidate.is_file() and candidate.suffix == ".py":
            return f"{candidate}{colon}{argument}"
    names = sorted(f"configs/{file.name}" for file in packaged.glob("[a-z]*.py") if file.name != "recorded.py")
    hint = "".join(f" (did you mean {close}?)" for close in difflib.get_close_matches(chosen, names, 1))
    raise ValueError(f"--config={chosen}: there is no such file; choices with the package: {', '.join(names)}{hint}")


def _default_workdir(chosen: str) -> Path:
    path = Path(chosen.partition(":")[0])
    return Path("runs") / (f"{path.absolute().parent.name}_again" if path.suffix == ".json" else path.stem)


def misnamed_field(argv: Sequence[str]) -> str | None:
    """The refusal of the first --config.FIELD that no config has or that is a group, None if there is none such."""
    for argument in argv[1:]:
        path = argument.lstrip("-").partition("=")[0]
        group: Any = default.get_config()
        for name in path.split(".")[1:] if path.startswith("config.") else ():
            if not isinstance(group, ConfigDict) or name not in group:
                names = sorted(group) if isinstance(group, ConfigDict) else []
                hint = "".join(f" (did you mean {close}?)" for close in difflib.get_close_matches(name, names, 1))
                return f"--{path}: there is no such field; choose from {', '.join(names) or 'no fields'}{hint}"
            group = group[name]
        if path.startswith("config.") and isinstance(group, ConfigDict):
            fields = ", ".join(f"--{path}.{name}" for name in sorted(group))
            return f"{argument}: a group of fields; choose one of them: {fields}"
    return None


def _is_no_account_of_orbax(record: logging.LogRecord) -> bool:
    """Orbax logs a failure with several tracebacks and raises it, too; the one line about that is enough."""
    return not (record.levelno >= logging.ERROR and "orbax" in record.pathname)


def _say_unless_of_a_closed_loop(unraisable: Any) -> None:
    """TensorStore tells of each array of a failed checkpoint to an event loop that the failure has closed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _refuse(error: BaseException | str) -> int:
    text = error.args[0] if isinstance(error, KeyError) and error.args else error
    print(f"jacreg-train: {' '.join(str(text).split())}", file=sys.stderr)
    return USAGE_ERROR


def run() -> None:
    """The console script."""
    sys.unraisablehook = _say_unless_of_a_closed_loop
    try:
        sys.exit(main(sys.argv))
    except KeyboardInterrupt:  # before the loop has taken the signals over
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    run()
