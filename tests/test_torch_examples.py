"""The examples with PyTorch run; skipped where it is not installed."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, monkeypatch, *arguments, **constants):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # where pickle finds its classes
    spec.loader.exec_module(module)
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    module.main()


def test_views(monkeypatch, tmp_path, capsys):
    run("plot_torch_views", monkeypatch, "--figure", tmp_path / "a.png", ROUNDS=4)
    printed = capsys.readouterr().out
    assert re.search(r"IFCA +accuracy 0\.\d+, clusters of \[6, 6\]", printed)
    turned = [float(x) for x in re.findall(r"^[2457] .*?(-?\d\.\d\d)$", printed, re.M)]
    as_is = [float(x) for x in re.findall(r"^[2457] +(-?\d\.\d\d)", printed, re.M)]
    assert len(turned) == 4 and sum(turned) > sum(as_is) + 1
    assert (tmp_path / "a.png").stat().st_size > 10_000


def test_topics(monkeypatch, capsys):
    run("torch_topics", monkeypatch, ROUNDS=8)
    printed = capsys.readouterr().out
    assert re.search(r"CLoVE +0\.\d+ +1\.00", printed)
    scores = dict(re.findall(r"^(\w[\w ]+?) {2,}(0\.\d+)", printed, re.M))
    assert float(scores["CLoVE"]) > float(scores["one for all"]) + 0.1
