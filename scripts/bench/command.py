"""The command line of `scripts/benchmark.py`."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import measure, parts, render
from bench.results import Results, read
from bench.table import Settings
from jacreg_train.telemetry.writers import replace_file

USAGE_ERROR = 2


def main(argv: Sequence[str]) -> int:
    """Run the benchmark by a command line (program first); returns the exit code."""
    arguments = _parser().parse_args(argv[1:])
    chosen = parts.pareto_parts() if arguments.pareto else parts.quick_parts() if arguments.quick else parts.all_parts()
    try:
        chosen = {name: part for name, part in chosen.items() if re.search(arguments.only, name)}
        check_choice(arguments, chosen)
    except (ValueError, re.error) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return USAGE_ERROR
    if arguments.list:
        print("\n".join(chosen))
        return 0
    if not arguments.render:
        run(chosen, _settings(arguments), Results(arguments.output, list(argv)))
    content = read(arguments.output / "benchmark.json")
    text = render.markdown(content)
    replace_file(arguments.output / "benchmark.md", text)
    print(text)
    for path in _pictures(content, arguments.output):
        print(f"picture: {path}")
    if arguments.readme:
        render.write_between_markers(arguments.readme, text)
    for line in render.shortfalls(content["targets"]):
        print(f"falls short: {line}")
    return 0


def check_choice(arguments: argparse.Namespace, chosen: Mapping[str, parts.Part]) -> None:
    """Raises ValueError for a command line that cannot be followed."""
    if not chosen:
        raise ValueError(f"--only={arguments.only}: no part has such a name; --list prints them")
    if arguments.rounds is not None and arguments.rounds < 1:
        raise ValueError(f"--rounds={arguments.rounds}: must be at least 1")
    if arguments.render and not (arguments.output / "benchmark.json").exists():
        raise ValueError(f"--render: there is no {arguments.output / 'benchmark.json'}; run the benchmark first")
    if arguments.readme:
        content = arguments.readme.read_text(encoding="utf-8") if arguments.readme.exists() else ""
        if not 0 <= content.find(render.BEGIN) < content.find(render.END):
            raise ValueError(f"--readme={arguments.readme}: needs the lines {render.BEGIN} and {render.END}")


def run(chosen: Mapping[str, parts.Part], settings: Settings, results: Results) -> None:
    """Measure the parts in turn; one that fails is named and the others go on."""
    for index, (name, part) in enumerate(chosen.items(), 1):
        print(f"[{index}/{len(chosen)}] {name} ...", flush=True)
        start = time.perf_counter()
        try:
            part(results, settings)
        except Exception as error:  # hours of measurements must not be lost to one part
            print(f"  failed: {type(error).__name__}: {error}", file=sys.stderr)
        print(f"  {time.perf_counter() - start:.0f} s", flush=True)


def _settings(arguments: argparse.Namespace) -> Settings:
    budget = measure.memory_budget(arguments.memory_gib)
    if arguments.quick:
        return Settings(arguments.rounds or 3, patience_s=3.0, limit_s=10.0, budget=budget)
    return Settings(arguments.rounds or 5, patience_s=30.0, limit_s=arguments.limit_s, budget=budget)


def _pictures(content: Mapping[str, Any], folder: Path) -> list[Path]:
    try:
        from bench.plots import draw
    except ModuleNotFoundError as error:
        print(f"no pictures: {error.name} is missing: pip install 'jacreg[reports]'", file=sys.stderr)
        return []
    return draw(content, folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmark.py", description="Measure the estimators beside a plain gradient.")
    parser.add_argument("--quick", action="store_true", help="a short form, under three minutes on two cores")
    parser.add_argument("--pareto", action="store_true", help="time against error for every number of probes instead")
    parser.add_argument("--only", default="", metavar="REGEX", help="the parts whose name has a match; see --list")
    parser.add_argument("--list", action="store_true", help="print the parts' names and stop")
    parser.add_argument("--render", action="store_true", help="measure nothing: tables and pictures of what there is")
    parser.add_argument("--output", type=Path, default=Path("runs/benchmark"), help="a folder (runs/benchmark)")
    parser.add_argument("--readme", type=Path, metavar="FILE", help="also write the tables between its markers")
    parser.add_argument("--rounds", type=int, help="timed calls of each (5; 3 with --quick)")
    parser.add_argument("--memory_gib", type=float, help="what needs more does not fit (half of the machine's)")
    parser.add_argument("--limit_s", type=float, default=300.0, help="calls expected to take longer are not run (300)")
    return parser
