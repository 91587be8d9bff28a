"""What examples and benchmarks take from the package is there, run or not."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

from skcfl.calls import CALLS

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ROOT / "benchmarks", ROOT / "examples"
SCRIPTS = sorted(path for folder in FOLDERS for path in folder.rglob("*.py"))


def taken(path):
    """(module, name) of each import from the package, name None for a module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "skcfl":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from ((name, None) for name in names if name.split(".")[0] == "skcfl")


def is_there(module, name):
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name.split(".")[0] == "skcfl":
            return False
        pytest.skip(f"needs {error.name}")
    if name is None or hasattr(found, name):
        return True
    return hasattr(found, "__path__") and is_there(f"{module}.{name}", None)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_imports_of_scripts(path):
    missing = [pair for pair in taken(path) if not is_there(*pair)]
    assert not missing


def test_a_missing_name_is_seen():
    assert not is_there("skcfl.graphs", "no_such_graph")
    assert not is_there("skcfl.no_such_module", "graph")


def test_generated_clients_take_what_calls_send(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    methods = vars(importlib.import_module("at_scale").GeneratedSite)
    answered = {name: methods[f"_{name}"] for name in CALLS if f"_{name}" in methods}
    assert len(answered) > 15
    for name, method in answered.items():
        inspect.signature(method).bind(None, **dict.fromkeys(CALLS[name].down))
