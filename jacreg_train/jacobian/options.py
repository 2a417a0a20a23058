"""Checks of the options that estimators and functionals take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

WRT = ("params", "inputs")


def check_choice(field: str, value: Any, choices: Sequence[Any]) -> None:
    """Raises ValueError, naming field, value and choices, unless `value` is one of `choices`."""
    if value not in choices:
        raise ValueError(f"{field}={value!r} is not known; choices: {', '.join(map(str, choices))}")


def check_positive(**fields: Any) -> None:
    """Raises ValueError unless each field is a whole number of 1 or more."""
    for field, value in fields.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{field}={value!r} must be a whole number of 1 or more")


def check_chunks(**fields: Any) -> None:
    """Raises ValueError unless each field is None (all at once) or a whole number of 1 or more."""
    for field, value in fields.items():
        if value is not None:
            check_positive(**{field: value})


def check_names(what: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the choices, where `factory` has no keyword argument of a given name."""
    known = [name for name, p in inspect.signature(factory).parameters.items() if p.kind == p.KEYWORD_ONLY]
    for name, value in options.items():
        if name not in known:
            raise ValueError(f"{name}={value!r} has no meaning for {what}; its options: {', '.join(known)}")
