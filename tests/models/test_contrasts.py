"""Newton steps of several classes are solved for along contrasts."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.models._contrasts import contrasts


@pytest.mark.parametrize("n_classes", [2, 3, 7])
def test_contrasts_sum_to_zero(n_classes):
    Q = contrasts(n_classes)
    assert_allclose(Q.T @ Q, np.eye(n_classes - 1), atol=1e-15)
    assert_allclose(Q.sum(axis=0), 0.0, atol=1e-15)


@pytest.mark.parametrize("pull", [True, False])
@pytest.mark.parametrize("n_classes", [3, 6])
def test_steps_solve_the_whole_system(n_classes, pull):
    """Those of all classes, where they are equal penalty and pull are all."""
    rng = np.random.RandomState(n_classes)
    codes = np.repeat(np.arange(4), 30)
    X, y = rng.randn(120, 3) * [1.0, 1e-3, 1e3], rng.randint(0, n_classes, 120)
    model = LinearModel(loss="log_loss", alpha=0.1).bind(3, n_classes)
    pool = open_rows(model, X, y, codes, 4, rng.rand(120))
    seen = []

    def work(block, slots):
        w, g = rng.randn(2, len(slots), model.n_params) / np.tile([1.0, 1e-3, 1e3, 1.0], n_classes)
        diagonal = np.tile(model.decay, (len(slots), 1)) + (0.7 if pull else 0.0)
        g = g if pull else np.where(model.decay == 0.0, model.centre(g), g)
        step = model._newton_step(block, model.state(block, w), g, diagonal, 0.0)
        H = model.loss_derivatives(block, w)[1]
        product = np.einsum("cpq,cq->cp", H, step) + diagonal * step
        assert_allclose(product, g, rtol=1e-8, atol=1e-8)
        free = step.reshape(len(slots), n_classes, 4)[:, :, 3].sum(axis=1)
        common = g.reshape(len(slots), n_classes, 4)[:, :, 3].sum(axis=1)
        assert_allclose(free, common / 0.7 if pull else 0.0, atol=1e-12)
        seen.append(slots)

    pool._site.each(work)
    assert seen
