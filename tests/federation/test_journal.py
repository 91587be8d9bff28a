"""What a checkpoint is made of: digests of questions, and a file that one fit writes."""

import os
import uuid
from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from skcfl import FedAvgRegressor, LocalModels
from skcfl.exceptions import CheckpointError
from skcfl.federation.file_lock import FileLock
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
    # What has no value goes by its class, in another process, too.
    assert digest(object()) == digest(object())
    assert digest(np.random.RandomState(0)) == digest(np.random.RandomState(1))
    assert digest(np.ones((2, 3)).T) == digest(np.ones((3, 2)))


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
