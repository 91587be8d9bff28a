"""Fits to federations: one place or several, the same estimators, the same results."""

import warnings

import numpy as np
import pytest
from grouped import grouped
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import skcfl
from skcfl import FedAvgRegressor, IFCARegressor, LocalModels
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import FanOutFederation, InProcessFederation
from skcfl.models import MLP, Autoencoder, LinearModel, Location, ModelSpec
from skcfl.testing import StrictFederation
from skcfl.testing._strict import kernels

REGRESSION = make_clustered_regression(9, 3, 4, n_samples=12, random_state=0)
CLASSES = make_clustered_classification(9, 3, 4, n_samples=16, random_state=0)


def data_of(name):
    return CLASSES if "Classifier" in name else REGRESSION


def parts_of(data, n_parts, **options):
    """The clients, dealt to places in no order."""
    place = np.random.RandomState(1).permutation(np.arange(9) % n_parts)
    place = place[np.unique(data.groups, return_inverse=True)[1]]
    federations = []
    for k in range(n_parts):
        here = place == k
        federations.append(
            InProcessFederation(data.X[here], data.y[here], data.groups[here], **options)
        )
    return FanOutFederation(federations)


def make(name, **parameters):
    cls = getattr(skcfl, name)
    known = cls().get_params()
    parameters = {"random_state": 0, "max_iter": 30, **parameters}
    parameters = grouped(cls, **{"lam": 0.1, "n_clusters": 3, **parameters})
    if name.startswith("Oracle"):
        parameters["labels"] = dict(
            zip(np.unique(data_of(name).groups), data_of(name).labels, strict=True)
        )
    return cls(**{key: value for key, value in parameters.items() if key in known})


def compare(found, wanted, rtol=1e-10):
    assert_array_equal(found.groups_, wanted.groups_)
    assert_array_equal(found.labels_, wanted.labels_)
    scale = np.abs(wanted.params_).max()
    assert_allclose(found.params_, wanted.params_, rtol=rtol, atol=rtol * scale)
    assert_allclose(found.objective_, wanted.objective_, rtol=rtol)


def booked(model):
    return model.calls_, model.floats_up_, model.floats_down_


@pytest.mark.parametrize("options", [{"hold_out": 0.3}, {"participation": 0.4}])
def test_draws_are_the_clients(options):
    wanted = make("IFCARegressor", n_clusters=2, **options)
    wanted = wanted.fit(REGRESSION.X, REGRESSION.y, groups=REGRESSION.groups)
    found = make("IFCARegressor", n_clusters=2, **options)
    compare(found.fit_federation(parts_of(REGRESSION, 4)), wanted)
    assert booked(found) == booked(wanted)


def test_weights_and_classes_of_several_places():
    weight = np.random.RandomState(0).uniform(0.5, 2.0, len(CLASSES.y))
    model = make("FedAvgClassifier", class_weight="balanced")
    wanted = model.fit(CLASSES.X, CLASSES.y, groups=CLASSES.groups, sample_weight=weight)
    ids = np.unique(CLASSES.groups)
    parts = []
    for some in (ids[:4], ids[4:]):
        here = np.isin(CLASSES.groups, some)
        parts.append(
            InProcessFederation(
                CLASSES.X[here], CLASSES.y[here], CLASSES.groups[here], weight[here]
            )
        )
    found = make("FedAvgClassifier", class_weight="balanced")
    compare(found.fit_federation(FanOutFederation(parts)), wanted)


def test_units_of_targets_of_several_places():
    model = make("FedAvgRegressor", loss="quantile")
    wanted = model.fit(REGRESSION.X, 1e-4 * REGRESSION.y, groups=REGRESSION.groups)
    scale = wanted.model_.kernel.scale
    assert_allclose(scale, 1e-4 * REGRESSION.y.std(), rtol=1e-12)
    data = type(REGRESSION)(**{**REGRESSION, "y": 1e-4 * REGRESSION.y})
    found = make("FedAvgRegressor", loss="quantile").fit_federation(parts_of(data, 3))
    compare(found, wanted)
    assert booked(found) == booked(wanted)


def test_names_of_features_come_by_hello():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(REGRESSION.X, columns=["a", "b", "c", "d"])
    federation = InProcessFederation(frame, REGRESSION.y, REGRESSION.groups)
    assert federation.hello("regressor").feature_names.tolist() == ["a", "b", "c", "d"]
    model = FedAvgRegressor().fit_federation(federation)
    assert model.feature_names_in_.tolist() == ["a", "b", "c", "d"]
    model.predict(frame, groups=REGRESSION.groups)


def test_models_without_targets():
    federation = InProcessFederation(REGRESSION.X, None, REGRESSION.groups)
    model = LocalModels(Location()).fit_federation(federation)
    assert model.params_.shape == (9, 4)


def one(rows, y=None, groups=None, columns=4):
    X = np.ones((rows, columns)) * np.arange(rows)[:, None]
    y = np.arange(float(rows)) if y is None else y
    return InProcessFederation(X, y, np.repeat("a", rows) if groups is None else groups)


def test_what_places_must_agree_on():
    model = FedAvgRegressor()
    with pytest.raises(ValueError, match="one place: those of 'a' are in part 0 and part 1"):
        model.fit_federation(FanOutFederation([one(3), one(4)]))
    with pytest.raises(ValueError, match="those of part 0 have 4, those of part 1 3"):
        model.fit_federation(FanOutFederation([one(3), one(4, None, ["b"] * 4, 3)]))
    pd = pytest.importorskip("pandas")
    frames = [
        InProcessFederation(pd.DataFrame({"x": [1.0, 2], name: [2.0, 1]}), [1.0, 2], [name] * 2)
        for name in ("p", "q")
    ]
    with pytest.raises(ValueError, match="same order"):
        model.fit_federation(FanOutFederation(frames))
    with pytest.raises(ValueError, match="at least one"):
        FanOutFederation([])
    assert not hasattr(model, "params_")


def test_bad_arguments():
    with pytest.raises(TypeError, match="federation must be one of"):
        FedAvgRegressor().fit_federation(REGRESSION.X)
    with pytest.raises(ValueError, match="group_col must be None"):
        FedAvgRegressor(group_col=0).fit_federation(one(3))
    with pytest.raises(ValueError, match="n_clusters=2 is more"):
        IFCARegressor(n_clusters=2).fit_federation(one(3))
    with pytest.raises(ValueError, match="y must have one entry per row"):
        one(3, [1.0, 2.0])
    with pytest.raises(ValueError, match="groups"):
        one(3, groups=["a", None, "b"])
    with pytest.raises(ValueError, match="y"):
        FedAvgRegressor().fit_federation(one(3, [1.0, np.nan, 2.0]))
    with pytest.raises(ValueError, match="cv must be a number of folds"):
        from sklearn.model_selection import KFold

        model = make("GTVRegressor", lam="auto", search=skcfl.LamSearch(cv=KFold(3)))
        model.fit_federation(parts_of(REGRESSION, 3))


def test_a_federation_can_be_fitted_again():
    """A fit leaves the rows as they were, whatever it standardised or weighed."""
    federation = parts_of(CLASSES, 2)
    first = make("FedAvgClassifier", class_weight="balanced").fit_federation(federation)
    second = make("FedAvgClassifier", class_weight="balanced").fit_federation(federation)
    assert_array_equal(first.params_, second.params_)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("LocalModelsClassifier").fit_federation(federation)


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_units_by_medians_over_clients(sparse_rows):
    """Of equal clients those of all rows; one in other units has no say; places do not matter."""
    rng = np.random.RandomState(0)
    X, groups = 3.0 + 2.0 * rng.normal(size=(2000, 2)), np.repeat(np.arange(10), 200)
    X[:, 1] = 0.0
    X[:20, 1] = 5.0  # constant for all clients but one
    y, wrap = X[:, 0], sparse.csr_array if sparse_rows else np.asarray
    model = LinearModel(standardize=True).bind(2)

    def units(X):
        here = groups < 5
        parts = [
            InProcessFederation(wrap(X[some]), y[some], groups[some]) for some in (here, ~here)
        ]
        whole = InProcessFederation(wrap(X), y, groups).open_with_folds(model, 0, robust=True)[0]
        apart = FanOutFederation(parts).open_with_folds(model, 0, robust=True)[0]
        np.testing.assert_allclose(whole.scaling.scale, apart.scaling.scale)
        return whole.scaling

    found = units(X)
    np.testing.assert_allclose(found.scale[0], X[:, 0].std(), rtol=0.03)
    np.testing.assert_allclose(found.mean[0], 0.0 if sparse_rows else X[:, 0].mean(), atol=0.1)
    np.testing.assert_allclose(found.scale[1], np.sqrt(0.1) * 5.0)
    X[groups == 3] *= 1e6
    other = units(X)
    np.testing.assert_allclose(other.scale[0], found.scale[0], rtol=0.05)


def test_server_code_has_the_spec_of_a_model_only():
    """What takes rows is refused to the rooms of servers, whatever the class of the model."""
    for kind in (LinearModel, MLP, Location, Autoencoder):
        refused = kernels(kind)
        assert {"value_gradient", "losses", "best_response", "design", "encode"} <= refused
        # Nothing that takes rows is in the spec, and what is abstract there takes none.
        assert not refused & {name for name in dir(ModelSpec) if not name.startswith("__")}
    pool = StrictFederation(parts_of(REGRESSION, 2)).open(LinearModel().bind(4), 0)
    model = pool.model
    assert isinstance(model, LinearModel) and type(model).__name__ == "LinearModel"
    asked = "from operator import attrgetter\nask = lambda model: model.{}"
    for name, place in (("value_gradient", "skcfl.fusion.made_up"), ("prox", "skcfl.rounds.x")):
        rooms = {"__name__": place}
        exec(asked.format(name), rooms)
        with pytest.raises(AttributeError, match=f"{place} asked a model for '{name}'"):
            rooms["ask"](model)
        with pytest.raises(AttributeError, match=f"asked a model for '{name}'"):
            rooms["ask"](pool.penalised(0.5).model)
        rooms["__name__"] = "skcfl.base"  # predictions are made where rows are
        assert callable(rooms["ask"](model))
