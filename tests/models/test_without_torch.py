"""PyTorch is an extra: who lacks it is told how to install it, before anything is computed."""

import sys

import numpy as np
import pytest
from sklearn.base import clone

from skcfl import FedAvg
from skcfl.models import TorchModel


def make_nothing():
    raise AssertionError("called without PyTorch")


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    model = FedAvg(clone(TorchModel(make_nothing, alpha=0.0)))
    assert "make_nothing" in repr(model)
    with pytest.raises(ImportError, match=r"python -m pip install 'skcfl\[torch\]'"):
        model.fit(np.eye(4), [0, 1, 0, 1], groups=[0, 0, 1, 1])
    assert not hasattr(model, "groups_")
