"""Checks of model arguments: each returns the value or raises a ValueError with field, value and choices."""

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

COMPUTE_DTYPES = ("float32", "bfloat16", "float16")


def one_of(owner: str, field: str, value: Any, choices: Sequence[Any]) -> Any:
    if value not in choices:
        raise ValueError(f"{owner}: {field}={value!r} is unknown; choose from {listed(choices)}")
    return value


def known_arguments(owner: str, factory: Callable[..., Any], given: Collection[str]) -> None:
    choices = [field for field in inspect.signature(factory).parameters if field != "num_classes"]
    for field in given:
        if field not in choices:
            raise ValueError(f"{owner}: there is no argument {field!r}; choose from {listed(choices)}")


def positive_int(owner: str, field: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{owner}: {field}={value!r} must be a whole number of at least 1")
    return int(value)


def positive_ints(owner: str, field: str, values: Any) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{owner}: {field}={values!r} must be a tuple of whole numbers of at least 1")
    return tuple(positive_int(owner, field, value) for value in values)


def rate(owner: str, field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
        raise ValueError(f"{owner}: {field}={value!r} must be a number in [0, 1)")
    return float(value)


def compute_dtype(owner: str, value: Any) -> str | None:
    """A name among ``COMPUTE_DTYPES``, a dtype of that name, or None."""
    if value is None:
        return None
    name = value if isinstance(value, str) else getattr(jnp.dtype(value), "name", value)
    return one_of(owner, "dtype", name, (None, *COMPUTE_DTYPES))


def listed(choices: Iterable[Any]) -> str:
    return ", ".join(str(choice) for choice in choices)
