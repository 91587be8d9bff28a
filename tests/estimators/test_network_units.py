"""Networks are trained on standardised rows: units and origins of features and targets."""

import inspect

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from site_tables import Given, Wire
from sklearn.base import clone
from trials import some

import skcfl
from skcfl import (
    IFCA,
    FedAvg,
    FedAvgRegressor,
    FedEMRegressor,
    IFCARegressor,
    LocalModelsClassifier,
)
from skcfl.calls.first_order import Losses
from skcfl.exceptions import UnitsWarning
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.federation.remote import RemoteFederation
from skcfl.models import MLP, Autoencoder, LinearModel
from skcfl.models.losses import LOSSES, make_loss

NETWORK = {"hidden_layer_sizes": (6,), "max_iter": 4, "random_state": 0}
REGRESSORS = [
    cls
    for name, cls in vars(skcfl).items()
    if name.endswith("Regressor") and "hidden_layer_sizes" in inspect.signature(cls).parameters
]
REGRESSION_LOSSES = [name for name in LOSSES if not make_loss(name).classifier]

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def waves(seed=0, n_clients=6, n_rows=25):
    """Clients whose targets are bent, and positive."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_clients), n_rows)
    X = rng.normal(size=(len(groups), 3))
    y = np.exp(np.sin(X[:, 0]) * X[:, 1] + 0.3 * rng.normal(size=len(groups)))
    return X, y, groups


@pytest.mark.parametrize("cls", some(REGRESSORS, 4))
def test_units_change_nothing(cls):
    """Powers of two scale without rounding."""
    X, y, groups = waves()
    known = inspect.signature(cls).parameters
    options = {name: value for name, value in NETWORK.items() if name in known}
    wanted = cls(**options).fit(X, y, groups=groups)
    found = cls(**options).fit(2.0**20 * X, 2.0**-40 * y, groups=groups)
    assert_array_equal(found.params_, wanted.params_)
    there = found.predict(2.0**20 * X, groups=groups)
    assert_array_equal(there, 2.0**-40 * wanted.predict(X, groups=groups))


@pytest.mark.parametrize("loss", REGRESSION_LOSSES)
def test_units_by_loss(loss):
    X, y, groups = waves()
    model = FedAvgRegressor(loss, **NETWORK).fit(X, y, groups=groups)
    other = FedAvgRegressor(loss, **NETWORK).fit(X, 2.0**30 * y, groups=groups)
    # Huber's residuals are in units of the target, and logarithms are rounded.
    if loss in ("squared_error", "quantile"):
        assert_array_equal(other.params_, model.params_)
    elif loss != "huber":
        there = other.predict(X, groups=groups) / 2.0**30
        assert_allclose(there, model.predict(X, groups=groups), rtol=1e-4)
    assert other.score(X, 2.0**30 * y, groups=groups) > 0.0


@pytest.mark.parametrize("origin", [0.0, 1e8])
def test_origins_and_single_precision(origin):
    """Rows far from zero have no digits left in float32."""
    X, y, groups = waves()
    fit = FedAvgRegressor(hidden_layer_sizes=(16,), random_state=0)
    wanted = fit.fit(X, y, groups=groups).score(X, y, groups=groups)
    assert wanted > 0.3
    X, y = X + origin, 1e3 * y - origin
    model = fit.fit(X, y, groups=groups)
    assert_allclose(model.score(X, y, groups=groups), wanted, atol=1e-6)
    new = model.adapt(X, y, groups=groups + 100)
    wanted, close = model.predict(X, groups=groups), {"rtol": 0, "atol": 1e-5 * y.std()}
    assert_allclose(new.predict(X, groups=groups + 100), wanted, **close)
    assert_allclose(model.client_model(0).predict(X), wanted, **close)


@pytest.mark.parametrize("loss", REGRESSION_LOSSES)
def test_losses_in_the_users_units(loss):
    """Clients answer those of counts in these: their noise is known, and so is the evidence."""
    X, y, groups = waves()
    y = np.round(1e3 * y)
    network = MLP((4,), loss=loss, precision="double")
    federation = InProcessFederation(X, y, groups)
    here = federation.open(network.bind(3), 0)
    there = federation.open(clone(network).set_params(standardize=False).bind(3), 0)
    theta = here.model.init_params(2, 0)
    parts = [here.model.weights(one) for one in theta]
    same = [np.concatenate([np.r_[W.ravel(), b] for W, b in one.values()]) for one in parts]
    losses = here.ask(Losses, theta) * here.model.loss_unit
    assert_allclose(losses, there.ask(Losses, np.array(same)), rtol=1e-9)
    assert here.model.loss_unit == 1.0 or here.model.unknown_scale
    fitted = IFCARegressor(2, loss=loss, **NETWORK).fit(X, y, groups=groups)
    rows = fitted.model_.row_losses(X, y, fitted.cluster_params_, np.zeros(len(X), dtype=int))
    means = np.bincount(groups, rows) / np.bincount(groups)
    assert_allclose(fitted.cluster_losses(X, y, groups=groups)[:, 0], means, rtol=1e-4)


def test_sites_and_masks():
    X, y, groups = waves()
    X, y = 1e3 * X + 7e3, 1e-2 * y
    rows = [(X[here], y[here], groups[here]) for here in (groups < 3, groups >= 3)]
    parts = FanOutFederation([InProcessFederation(*part) for part in rows])
    sites = [Wire(Given(*one)) for one in zip(("north", "south"), rows, strict=True)]
    remote = RemoteFederation(sites)
    wanted = IFCARegressor(2, **NETWORK).fit(X, y, groups=groups)
    for federation in (parts, remote):
        found = IFCARegressor(2, **NETWORK).fit_federation(federation)
        assert_allclose(found.params_, wanted.params_, rtol=1e-3, atol=1e-4)
    assert_array_equal(found.assign_federation(remote), found.labels_)
    bounds = {"features": (4e3, 1e4), "target": (0.0, 0.1)}
    masked = InProcessFederation(X, y, groups).masked(3, bounds=bounds)
    shared = FedAvgRegressor(hidden_layer_sizes=(16,), random_state=0).fit_federation(masked)
    assert shared.adapt(X, y, groups=groups).score(X, y, groups=groups) > 0.2


def test_noise_is_in_the_networks_units():
    X, y, groups = waves(n_clients=40, n_rows=5)
    models = []
    for unit in (1.0, 2.0**-20):
        bounds = {"features": (-4.0, 4.0), "target": (0.0, 8.0 * unit)}
        noisy = InProcessFederation(X, unit * y, groups).private(
            8.0, bounds=bounds, random_state=0
        )
        models.append(
            FedAvgRegressor(hidden_layer_sizes=(4,), random_state=0).fit_federation(noisy)
        )
    one, other = (model.cluster_params_ for model in models)
    assert_array_equal(one, other)
    assert (one != 0).all() and not models[0]._is_local


def test_sparse_features_are_scaled_only():
    X, y, groups = waves()
    X[np.abs(X) < 0.7] = 0.0
    classes = y > 1.0
    dense = LocalModelsClassifier(**NETWORK).fit(X, classes, groups=groups)
    rows = sparse.csr_array(64.0 * X)
    model = LocalModelsClassifier(**NETWORK).fit(rows, classes, groups=groups)
    again = LocalModelsClassifier(**NETWORK).fit(sparse.csr_array(X), classes, groups=groups)
    assert_array_equal(model.params_, again.params_)
    assert not np.array_equal(model.params_, dense.params_)
    assert_array_equal(model.predict(64.0 * X, groups=groups), again.predict(X, groups=groups))


def test_standardize_is_a_choice():
    X, y, groups = waves()
    with pytest.warns(UnitsWarning, match="Set standardize=True"):
        FedAvgRegressor(standardize=False, **NETWORK).fit(X, 1e4 * y, groups=groups)
    plain = FedAvgRegressor(standardize=False, **NETWORK).fit(X, y, groups=groups)
    assert plain.model_.scaling_ is None
    mixed = FedEMRegressor(2, **NETWORK).fit(X, 1e6 * y + 1e9, groups=groups)
    assert mixed.score(X, 1e6 * y + 1e9, groups=groups) > 0.1


def test_autoencoders_reconstruct_in_the_users_units():
    X, _, groups = waves()
    X = np.hstack([X, X @ [[1.0, 0.5], [0.0, 1.0], [-1.0, 0.0]]])
    sizes = 2.0 ** np.arange(0, 50, 10)
    model = Autoencoder((3,), activation="identity")
    wanted = IFCA(model, 2, max_iter=5, random_state=0).fit(X, groups=groups)
    found = IFCA(model, 2, max_iter=5, random_state=0).fit(sizes * X, groups=groups)
    assert_array_equal(found.params_, wanted.params_)
    assert_allclose(found.score(sizes * X, groups=groups), wanted.score(X, groups=groups))
    there = found.predict(sizes * X, groups=groups)
    assert_allclose(there, sizes * wanted.predict(X, groups=groups), rtol=1e-6)
    own = groups == 0
    assert_allclose(found.client_model(0).predict(sizes * X[own]), there[own], rtol=1e-4)
    share = 1 / (1 + np.exp(-X))
    pixels = FedAvg(Autoencoder((3,), output_activation="sigmoid")).fit(share, groups=groups)
    assert pixels.model_.scaling_ is None
    masked = InProcessFederation(X, None, groups).masked(3, bounds={"features": (-9, 9)})
    assert np.isfinite(FedAvg(model).fit_federation(masked).cluster_params_).all()


def test_a_message_with_other_numbers_is_refused():
    X, y, groups = waves()
    model = FedAvgRegressor(**NETWORK).fit(X, y, groups=groups).model_
    parts = model.to_message()
    assert_array_equal(type(model).from_message(parts).scaling_.mean, model.scaling_.mean)
    ones = np.ones(3)
    for bad in ((ones, 0 * ones), (ones[:2], ones), (ones * np.nan, ones), (ones, ["a"] * 3)):
        with pytest.raises(ValueError, match="mean|scale"):
            type(model).from_message(parts | {"scaling": bad})
    assert type(model).from_message(parts).units_ == model.units_
    # One for each row would tell of single rows.
    for bad in (
        (np.nan, 1.0),
        (1.0, 0.0),
        (1.0, -2.0),
        ("a", "b"),
        (np.ones(6), 1.0),
        (1.0, ones),
    ):
        with pytest.raises(ValueError, match="(mean|scale) of the targets must be"):
            type(model).from_message(parts | {"units": bad})


def test_measures_are_booked_as_those_of_linear_models():
    X, y, groups = waves()
    federation = InProcessFederation(X, y, groups)
    models = LinearModel().bind(3), MLP((2,), loss="squared_error").bind(3)
    linear, network = (federation.open(model, 0).ledger.published() for model in models)
    assert linear == network
