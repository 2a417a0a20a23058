"""YAML from a file that may be damaged or hostile, as plain data."""

import re
from pathlib import Path
from typing import Any

import yaml

_MAX_BYTES = 1_000_000


def read_yaml(path: Path) -> Any:
    """The file's content: dicts, lists, strings, numbers, booleans and None; nothing in it is executed.

    Raises:
        OSError: it can't be read.
        ValueError: it is too large, no YAML, uses aliases, or gives a key twice; one line.
    """
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError("larger than a megabyte")
    try:
        text = path.read_text(encoding="utf-8")
        if "&" in text and "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)):
            raise ValueError("YAML aliases are not supported")  # nested ones can grow without bound
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not YAML ({' '.join(str(error).split())[:200]})") from None


class _Loader(yaml.SafeLoader):
    """YAML as people mean it: `1e-3` is a number (YAML 1.1: `1.0e-3`), a key given twice is a mistake."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        mapping = super().construct_mapping(node, deep)
        if len(mapping) != len(node.value):
            keys = [key.value for key, _ in node.value]
            twice = next((key for key in keys if keys.count(key) > 1), keys)
            raise ValueError(f"{twice}: given twice")
        return mapping


def _float_or_string(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> Any:
    text = loader.construct_scalar(node)
    try:
        return float(text.replace("_", ""))
    except ValueError:
        return text


_Loader.add_constructor("jacreg:float", _float_or_string)
_Loader.yaml_implicit_resolvers = {
    first: list(resolvers) for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "jacreg:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
