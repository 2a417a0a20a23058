"""Config files are code. Nothing else that is read is: not unpickled, evaluated, or handed to a shell."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for folder in ("configs", "jacreg_train", "models", "scripts") for path in (ROOT / folder).rglob("*.py")
)
MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "runpy", "imp"}
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
}
KEYWORDS = {"allow_pickle", "shell"}


def findings(path: Path) -> list[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    safe_loaders = {c.name for c in classes if [ast.unparse(base) for base in c.bases] == ["yaml.SafeLoader"]}
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            loaders = {ast.unparse(keyword.value) for keyword in node.keywords if keyword.arg == "Loader"}
            if name in CALLS and not (loaders and loaders <= safe_loaders):
                found.append(name)
            for keyword in node.keywords:
                if keyword.arg in KEYWORDS and ast.unparse(keyword.value) != "False":
                    found.append(f"{name}({keyword.arg}=...)")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_executes_what_it_reads(path):
    assert findings(path) == []


def test_the_check_finds_what_it_looks_for(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("import pickle\nfrom dill import loads\neval('1')\nyaml.load(f)\nnp.load(f, allow_pickle=True)\n")
    assert findings(path) == ["pickle", "dill", "eval", "yaml.load", "np.load(allow_pickle=...)"]
