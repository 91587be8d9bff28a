"""What a checkpoint is made of: digests of questions, and a file that one fit writes."""

import ast
import copy
import os
import stat
import subprocess
import sys
import threading
import uuid
from datetime import date
from decimal import Decimal
from fractions import Fraction
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from skcfl import FedAvgClassifier, FedAvgRegressor, LocalModels
from skcfl.exceptions import CheckpointError
from skcfl.federation import InProcessFederation
from skcfl.federation.file_lock import FileLock, write_whole
from skcfl.federation.inprocess import InProcessSite
from skcfl.federation.journal import Journal, digest


def test_digests_tell_values_apart():
    values = [None, 0, 0.0, "0", b"0", [0], [[0]], [0, 0], {"a": 0}, np.zeros(2), np.zeros((2, 1))]
    values += [np.zeros(2, dtype=int), LocalModels(), FedAvgRegressor(), FedAvgRegressor(alpha=2)]
    values += [np.array(["a", None], dtype=object), int, float, np.float64(0)]
    # Client ids of types without attributes.
    values += [uuid.UUID(int=1), uuid.UUID(int=2), Decimal(1), Decimal(2), Fraction(1, 3)]
    values += [date(2026, 1, 1), date(2026, 1, 2), frozenset("ab"), frozenset("a"), frozenset()]
    for made in (pd.Period, pd.Timestamp):
        values += [made("2025-01-01"), made("2026-01-01")]
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]}, index=["p", "q"])
    values += [frame, frame["a"], frame.index, frame.assign(a=0.0), frame.rename({"p": "r"})]
    values += [frame.rename(columns={"a": "c"})]
    found = {digest(value) for value in values}
    assert len(found) == len(values)
    assert digest(frame) == digest(frame.copy())
    assert list({0, 8}) != list({8, 0}) and digest({0, 8}) == digest({8, 0})
    assert digest(object()) == digest(object())
    assert digest(np.ones((2, 3)).T) == digest(np.ones((3, 2)))


#: Pairs of parameters of which only the values within differ, and their digests.
WITHIN = """
from functools import partial
import re
import numpy as np
from skcfl.federation.journal import digest

class Slots:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k

    def loss(self, output):
        return self.k * output

def made(name, source):
    scope = {"__name__": name}
    exec(source, scope)
    return scope["loss"]

def closed(k):
    def loss(output, depth=3):
        return loss(output, depth - 1) if depth else abs(k * output)
    return loss

POWER = "def loss(output, power=2): return output ** power"
def pairs():
    yield partial(pow, exp=2), partial(pow, exp=3)
    yield partial(pow, exp=2), partial(max, key=2)
    yield made("a", POWER), made("b", POWER)
    yield made("a", POWER), made("a", POWER.replace("2", "3"))
    yield made("a", POWER), made("a", POWER.replace("**", "*"))
    yield made("a", POWER), made("a", POWER.replace("** power", "in {'x', 'y', 'z'}"))
    yield closed(1), closed(2)
    yield Slots(1), Slots(2)
    yield Slots(1).loss, Slots(2).loss
    yield np.add, np.subtract
    yield re.compile("a"), re.compile("b")
    for generator in (np.random.default_rng, np.random.RandomState):
        yield generator(0), generator(1)

digests = [(digest(one).hex(), digest(other).hex()) for one, other in pairs()]
"""


def test_digests_see_the_values_within_parameters_and_no_addresses():
    here = {"__name__": "__main__"}
    exec(WITHIN, here)
    assert all(one != other for one, other in here["digests"])
    elsewhere = subprocess.run(
        [sys.executable, "-c", f"{WITHIN}print(digests)"],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert ast.literal_eval(elsewhere.stdout.decode()) == here["digests"]


def test_tensors_go_by_all_of_their_values():
    torch = pytest.importorskip("torch")
    layers = [torch.nn.Linear(2000, 1), torch.nn.LazyLinear(1)]
    changed = copy.deepcopy(layers[0])
    changed.weight.data[0, 1000] += 1.0
    assert digest(changed) != digest(layers[0])
    assert [digest(copy.deepcopy(layer)) for layer in layers] == list(map(digest, layers))


def test_parameters_that_cannot_be_compared_are_named():
    lock = threading.Lock()
    for value in (lock, partial(pow, lock), lambda: lock, SimpleNamespace(held=[lock])):
        with pytest.raises(CheckpointError, match=r"cannot compare objects of _thread\.lock"):
            digest(value)


def test_a_refused_first_question_leaves_no_file(tmp_path, monkeypatch):
    federation, rows = InProcessFederation(np.eye(4), np.ones(4), [0, 0, 1, 1]), []

    def rows_once(*about):
        rows.append(about)
        if len(rows) == 2:
            raise ValueError("not these")
        return InProcessFederation.rows(federation, *about)

    monkeypatch.setattr(federation, "rows", rows_once)
    with pytest.raises(ValueError, match="not these"):
        FedAvgRegressor().fit_federation(federation, tmp_path / "fit")
    assert not (tmp_path / "fit").exists()
    FedAvgRegressor().fit_federation(federation, tmp_path / "fit")


def test_a_link_to_a_checkpoint_is_that_checkpoint(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "fit")
    first = Journal(tmp_path / "fit", "x", 0, False)
    with pytest.raises(CheckpointError, match="is of a fit that is running"):
        Journal(tmp_path / "link", "x", 0, False)
    Journal(tmp_path / "another", "x", 0, False).close(False)
    first.close(False)
    Journal(tmp_path / "link", "x", 0, False).close(False)


def test_a_lock_that_was_deleted_in_between_is_not_held(tmp_path, monkeypatch):
    """Opened before the last holder deleted it: a new one is made, which others see."""
    first, there = FileLock(tmp_path / "fit"), FileLock._is_there
    looked = []

    def late(self):
        if not looked:
            looked.append(os.unlink(tmp_path / "fit.lock"))
        return there(self)

    first.release()
    monkeypatch.setattr(FileLock, "_is_there", late)
    second = FileLock(tmp_path / "fit")
    with pytest.raises(BlockingIOError):
        FileLock(tmp_path / "fit")
    second.release()
    second.release()


@pytest.mark.skipif(os.name != "posix", reason="folders are no files there")
def test_files_are_written_behind_links(tmp_path, monkeypatch):
    """One that took the place of a link would leave the account of others as it was."""
    synced, fsync = [], os.fsync

    def noted(number):
        synced.append(stat.S_ISDIR(os.fstat(number).st_mode))
        fsync(number)

    monkeypatch.setattr(os, "fsync", noted)
    (tmp_path / "volume").mkdir()
    link, file = tmp_path / "link", tmp_path / "volume" / "account"
    link.symlink_to(file)
    for data in (b"1", b"2"):
        write_whole(link, data)
        assert link.is_symlink() and file.read_bytes() == data
    assert synced == [False, True] * 2  # the bytes, and then the name


def test_rows_are_compared_by_sums(tmp_path, monkeypatch):
    """The gradient of a client of one row is this row: none is sent."""
    X, ids = np.random.default_rng(0).normal(size=(42, 3)), np.r_[0, 1, np.repeat([2, 3], 20)]
    answers, answer = [], InProcessSite.answer

    def seen(self, name, *args):
        answers.append((name, answer(self, name, *args)))
        return answers[-1][1]

    monkeypatch.setattr(InProcessSite, "answer", seen)
    federation = InProcessFederation(X, X.sum(axis=1) + X[:, 0] ** 2, ids)
    FedAvgRegressor().fit_federation(federation, tmp_path / "fit")
    gradients = [found["gradients"] for _, found in answers if "gradients" in found]
    assert answers[0][0] == "gradient_sums" and len(gradients) > 1
    assert {len(found) for found in gradients} == {1}


@pytest.mark.parametrize("cls", [FedAvgRegressor, FedAvgClassifier])
def test_clients_with_other_rows_are_found(cls, tmp_path, monkeypatch):
    """Two clients change their rows: losses of classes at zero, and plain sums, are the same."""
    X, ids = np.random.default_rng(0).normal(size=(60, 3)), np.repeat([4, 2, 3], 20)
    y, other, add = X.sum(axis=1), np.r_[20:40, :20, 40:60], Journal.add
    y = y > 0 if cls is FedAvgClassifier else y

    def stop(self, *args):
        add(self, *args)
        if self.n_added == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Journal, "add", stop)
        cls().fit_federation(InProcessFederation(X, y, ids), tmp_path / "fit", every=0)
    names = r"a sum of gradients" if cls is FedAvgClassifier else r"those of clients \[2, 4\]"
    changed = InProcessFederation(X[other], y[other], ids)
    with pytest.raises(CheckpointError, match=f"is of other rows: {names} .* not the same"):
        cls().fit_federation(changed, tmp_path / "fit", resume=True)
