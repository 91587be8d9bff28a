"""The two kinds of local models."""

import numpy as np
import pytest

from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import LocalUpdate, Objectives
from skcfl.federation.inprocess import open_rows
from skcfl.models import MLP, LinearModel
from skcfl.rounds.model_kinds import MINIMISED, TRAINED, kind_of, need_minima


@pytest.fixture(params=["linear", "network"])
def pool(request):
    rng = np.random.RandomState(0)
    X, y = rng.standard_normal((40, 3)), rng.standard_normal(40)
    model = LinearModel() if request.param == "linear" else MLP((2,), loss="squared_error")
    return open_rows(model.bind(3), X, y, np.arange(40) % 4, 4, random_state=0)


def test_kind_is_that_of_the_model(pool):
    exact = isinstance(pool.model, LinearModel)
    assert kind_of(pool) is (MINIMISED if exact else TRAINED)
    assert kind_of(pool.subset([0, 2])) is kind_of(pool)
    assert kind_of(pool).exact == exact


def test_models_apart_are_minima_or_steps_from_one_start(pool):
    pool.random_state.seed(0)
    models = kind_of(pool).local_models(pool, 3, 0.1, "sgd", None)
    pool.random_state.seed(0)
    if kind_of(pool).exact:
        np.testing.assert_array_equal(models, pool.ask(Solve)[0])
    else:
        np.testing.assert_array_equal(models, pool.ask(LocalUpdate, pool.start(), 3, 0.1, "sgd"))


def test_first_steps_lower_every_objective(pool):
    start = pool.start()
    before = pool.ask(Objectives, np.tile(start, (pool.n_clients, 1)))
    assert (pool.ask(Objectives, kind_of(pool).first_steps(pool, start, 5)) < before).all()


def test_refusals_name_the_model(pool):
    if kind_of(pool).exact:
        need_minima(pool, "no {}")
    else:
        with pytest.raises(ValueError, match="^no MLP, please$"):
            need_minima(pool, "no {}, please")
