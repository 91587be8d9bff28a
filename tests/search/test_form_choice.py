"""The choice of a form: the first one, unless another is clearly better."""

from types import SimpleNamespace

import numpy as np
import pytest

from skcfl.federation.ledger import Ledger
from skcfl.search import basis


def forms_of(losses):
    """Forms with some losses of each client, and what judges them."""

    class HeldOutLoss:
        def __init__(self, pool, rng, folds):
            self.weights = np.ones(pool.n_clients)
            self.pools = [SimpleNamespace(ledger=Ledger(), travels=False)]

        def losses(self, k, models, ledger):
            return models

    made = []
    for name, values in losses.items():
        n = len(values)
        about = {"n_clients": n, "client_sizes": np.full(n, 9), "travels": False}
        pool = SimpleNamespace(ledger=Ledger(), **about)
        made.append(basis.Form(name, pool, lambda pool, values=values: np.asarray(values, float)))
    return made, HeldOutLoss


@pytest.mark.parametrize(
    ("gains", "taken"),
    [
        ([1.0, 1.0, 1.0, 1.2], "curves"),
        ([-1.0, -1.0, -1.0, -1.2], "lines"),
        ([3.0, -2.0, 2.0, -2.0], "lines"),  # within a standard error
        ([0.05, 0.05, 0.05, 0.05], "lines"),  # within 1 %
        ([-np.inf, 1.0, 1.0, 1.0], "lines"),
        ([np.nan, 1.0, 1.0, 1.0], "curves"),  # nothing is known of one
    ],
)
def test_the_first_form_stays_unless_another_is_clearly_better(gains, taken, monkeypatch):
    lines = np.array([10.0, 10.0, 12.0, 8.0])
    forms, judge = forms_of({"lines": lines, "curves": lines - gains})
    monkeypatch.setattr(basis, "HeldOutLoss", judge)
    chosen, losses, _ = basis.better_form(forms)
    assert chosen.name == taken and losses["lines"] == 10.0


def test_few_clients_show_nothing(monkeypatch):
    forms, judge = forms_of({"lines": [9.0, 9.0, 9.0], "curves": [1.0, 1.0, 1.0]})
    monkeypatch.setattr(basis, "HeldOutLoss", judge)
    assert basis.better_form(forms)[0].name == "lines"
