"""Autoencoders: gradients, losses, reconstructions, clusters found without targets."""

from functools import partial

import numpy as np
import pytest
from client_rows import assert_slopes
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from sklearn.metrics import adjusted_rand_score
from trials import examples

import skcfl.models._network
from skcfl import IFCA, FedAvg
from skcfl.calls.first_order import Losses, Objectives, ObjectivesGradients
from skcfl.federation.inprocess import open_rows
from skcfl.models import Autoencoder
from skcfl.models._network import SLOPES

seeds = st.integers(0, 2**32 - 1)
SIZES = [4, 1, 0, 7]
forms = st.sampled_from([np.asarray, sparse.csr_array])


def make_pool(model, seed=0, form=np.asarray, d=4):
    rng = np.random.default_rng(seed)
    codes = rng.permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    X = rng.uniform(size=(len(codes), d)) * (rng.uniform(size=(len(codes), d)) < 0.7)
    weights = rng.integers(1, 4, size=len(codes)).astype(float)
    return open_rows(model.bind(d), form(X), None, codes, len(SIZES), weights), X, codes, weights


def test_layers_and_targets():
    bound = Autoencoder((5, 2, 5)).bind(7)
    assert list(bound.layer_slices()) == ["hidden1", "hidden2", "hidden3", "output"]
    assert bound.encode(None, 3).shape == (3, 0)


@pytest.mark.parametrize("output_activation", ["identity", "sigmoid"])
@examples(8)
@given(
    seed=seeds,
    form=forms,
    activation=st.sampled_from(sorted(SLOPES)),
    hidden=st.sampled_from([(), (2,), (3, 2)]),
    alpha=st.sampled_from([0.0, 0.2]),
    together=st.sampled_from([1, 2**20]),
)
def test_gradients_are_those_of_finite_differences(
    output_activation, seed, form, activation, hidden, alpha, together
):
    """One client at a time, or all together."""
    model = Autoencoder(hidden, activation, output_activation, alpha, precision="double")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skcfl.models._network, "CACHE_BYTES", together)
        pool = make_pool(model, seed, form)[0]
        w = pool.model.init_params(len(SIZES), seed)
        values, gradients = pool.ask(ObjectivesGradients, w)
        assert_array_equal(values, pool.ask(Objectives, w))
        assert_slopes(partial(pool.ask, Objectives), w, gradients, tol=2e-9)


@pytest.mark.parametrize("output_activation", ["identity", "sigmoid"])
@examples(8)
@given(seed=seeds, form=forms)
def test_losses_are_half_the_mean_squared_errors_of_reconstructions(output_activation, seed, form):
    model = Autoencoder((3,), output_activation=output_activation, precision="double")
    pool, X, codes, weights = make_pool(model, seed, form)
    theta, bound = pool.model.init_params(2, seed), pool.model
    for k in range(2):
        index = np.full(len(X), k)
        reconstructed = bound.output(bound.decision(form(X), theta, index))
        assert reconstructed.shape == X.shape
        if output_activation == "sigmoid":
            assert (reconstructed > 0).all() and (reconstructed < 1).all()
        rows = 0.5 * ((reconstructed - X) ** 2).mean(axis=1)
        assert_allclose(bound.row_losses(form(X), None, theta, index), rows, rtol=1e-12)
        wanted = [
            np.average(rows[codes == i], weights=weights[codes == i]) if n else 0.0
            for i, n in enumerate(SIZES)
        ]
        assert_allclose(pool.ask(Losses, theta)[:, k], wanted, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_clusters_are_found_without_targets():
    """Rows near one of two planes."""
    rng, form = np.random.default_rng(0), sparse.csr_array
    true = np.array([0, 1] * 4)
    planes = rng.normal(size=(2, 2, 8))
    groups = np.repeat(np.arange(8), 25)
    X = np.einsum("nk,nkd->nd", rng.normal(size=(200, 2)), planes[true[groups]])
    X += 0.05 * rng.normal(size=X.shape)
    model = IFCA(Autoencoder((4,), activation="identity"), 2, random_state=0)
    model.fit(form(X), groups=groups)
    assert adjusted_rand_score(true, model.labels_) == 1.0
    assert model.predict(form(X), groups=groups).shape == X.shape
    one = FedAvg(Autoencoder((1,), activation="identity"), random_state=0)
    one.fit(form(X), groups=groups)
    assert model.score(form(X), groups=groups) > 2 * one.score(form(X), groups=groups)
    assert_array_equal(model.assign(form(X), groups=groups), model.labels_)
