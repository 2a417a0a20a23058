"""Imports point one way: main -> training -> {data, telemetry, models, jacobian}; the core knows nobody."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# folder or module -> (own modules that it may import, third-party packages that it may import; None: any)
ALLOWED: dict[str, tuple[set[str], set[str] | None]] = {
    "jacreg_train/jacobian": ({"jacreg_train.jacobian"}, {"jax", "numpy", "jaxtyping"}),
    "models": ({"models"}, {"jax", "numpy", "flax", "haiku"}),
    "jacreg_train/data": ({"jacreg_train.data"}, None),
    "jacreg_train/telemetry": ({"jacreg_train.telemetry"}, None),
    "configs": ({"configs"}, {"ml_collections"}),
    "jacreg_train/training": (
        {
            "configs.default",
            "jacreg_train.data",
            "jacreg_train.jacobian",
            "jacreg_train.telemetry",
            "jacreg_train.training",
            "models",
        },
        None,
    ),
    "jacreg_train/main.py": (
        {"configs", "jacreg_train.data", "jacreg_train.training"},
        None,
    ),
}
OWN = {"configs", "jacreg_train", "models", "scripts"}


def imported(path: Path) -> set[str]:
    """Full names of all that a file imports, wherever in the file."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def sources(place: str) -> list[Path]:
    path = ROOT / place
    return [path] if path.suffix else sorted(path.rglob("*.py"))


@pytest.mark.parametrize("place", ALLOWED)
def test_imports_only_what_it_may(place):
    own, third_party = ALLOWED[place]
    assert sources(place)
    for path in sources(place):
        for name in imported(path):
            root = name.split(".")[0]
            if root in OWN:
                assert any((name + ".").startswith(allowed + ".") for allowed in own), f"{path}: {name}"
            elif third_party is not None and root not in sys.stdlib_module_names:
                assert root in third_party, f"{path}: {name}"


def test_only_data_preparation_imports_tensorflow():
    users = [
        path.relative_to(ROOT)
        for place in OWN
        for path in sources(place)
        if any(name.split(".")[0] == "tensorflow" for name in imported(path))
    ]
    assert set(users) <= {Path("jacreg_train/data/prepare.py"), Path("scripts/prepare_data.py")}


def test_training_loads_no_tensorflow():
    code = "import sys, jacreg_train.training.loop; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
