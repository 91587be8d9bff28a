"""Fits to federations: one place or several, the same estimators, the same results."""

from contextlib import suppress

import numpy as np
import pytest
from cases import CLASSES, DATA, booked, compare, make
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from private_clients import where
from scipy import sparse
from sklearn.model_selection import KFold

from skcfl import FedAvgClassifier, FedAvgRegressor, GTVRegressor, IFCARegressor, LamSearch
from skcfl.federation import (
    ClientPrivacy,
    FanOutFederation,
    InProcessFederation,
    SitePolicy,
)
from skcfl.federation.remote import RemoteFederation
from skcfl.models import MLP, Autoencoder, LinearModel, Location, ModelSpec
from skcfl.testing import StrictFederation
from skcfl.testing._strict import kernels


def places_of(data, n_parts):
    return FanOutFederation([InProcessFederation(*part) for part in parts_of(data, n_parts)])


@pytest.mark.parametrize(
    ("name", "options", "unit"),
    [
        ("IFCARegressor", {"n_clusters": 2, "hold_out": 0.3}, 1.0),
        ("IFCARegressor", {"n_clusters": 2, "participation": 0.4}, 1.0),
        ("FedAvgClassifier", {"class_weight": "balanced"}, 1),
        ("FedAvgRegressor", {"loss": "quantile"}, 1e-4),
    ],
)
def test_draws_classes_and_units_are_those_of_one_place(name, options, unit):
    data = CLASSES if name.endswith("Classifier") else DATA
    weight = np.random.RandomState(0).uniform(0.5, 2.0, len(data.y))
    rows = data.X, unit * data.y, data.groups, weight
    wanted = make(name, **options).fit(*rows[:2], groups=rows[2], sample_weight=weight)
    ids = np.array_split(np.unique(data.groups), 4)
    parts = [InProcessFederation(*where(rows, np.isin(data.groups, some))) for some in ids]
    found = make(name, **options).fit_federation(FanOutFederation(parts))
    compare(found, wanted)
    assert_allclose(found.objective_, wanted.objective_, rtol=1e-10)
    assert booked(found) == booked(wanted)
    if unit < 1:
        spread = np.average((rows[1] - np.average(rows[1], weights=weight)) ** 2, weights=weight)
        assert_allclose(wanted.model_.kernel.scale, np.sqrt(spread), rtol=1e-12)


def one(rows, y=None, groups=None, columns=4):
    X = np.ones((rows, columns)) * np.arange(rows)[:, None]
    y = np.arange(float(rows)) if y is None else y
    return InProcessFederation(X, y, np.repeat("a", rows) if groups is None else groups)


def test_what_places_must_agree_on():
    pd = pytest.importorskip("pandas")
    frames = [
        InProcessFederation(pd.DataFrame({"x": [1.0, 2], name: [2.0, 1]}), [1.0, 2], [name] * 2)
        for name in ("p", "q")
    ]
    model = FedAvgRegressor()
    for parts, message in (
        ([one(3), one(4)], "one place: those of 'a' are in part 0 and part 1"),
        (frames, "same order"),
        ([], "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit_federation(FanOutFederation(parts))
    assert not hasattr(model, "params_")


def test_bad_arguments():
    with pytest.raises(TypeError, match="federation must be one of"):
        FedAvgRegressor().fit_federation(DATA.X)
    with pytest.raises(ValueError, match="y must have one entry per row"):
        one(3, [1.0, 2.0])
    with pytest.raises(ValueError, match="groups"):
        one(3, groups=["a", None, "b"])
    for model, federation, message in (
        (FedAvgRegressor(group_col=0), one(3), "group_col must be None"),
        (IFCARegressor(n_clusters=2), one(3), "n_clusters=2 is more"),
        (FedAvgRegressor(), one(3, [1.0, np.nan, 2.0]), "y"),
        (
            GTVRegressor(search=LamSearch(cv=KFold(3))),
            places_of(DATA, 3),
            "cv must be a number of folds",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit_federation(federation)


@pytest.mark.filterwarnings("error")
def test_a_federation_can_be_fitted_again():
    """A fit leaves the rows as they were, whatever it standardised or weighed."""
    federation = places_of(CLASSES, 2)
    models = [make("FedAvgClassifier", class_weight="balanced") for _ in range(2)]
    assert_array_equal(*(model.fit_federation(federation).params_ for model in models))
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


@pytest.mark.parametrize("dtype", [object, "string", "category", "datetime64[ns]"])
def test_columns_that_fit_does_not_take_for_numbers_are_refused(dtype):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": 2.0, "code": ["2001", "2002"]}).astype({"code": dtype})
    rows, named_part = (frame[["code"]], [0.0, 1.0], ["a", "b"]), "part 0: X must hold numbers"
    with pytest.raises(ValueError, match="X must hold numbers.* Column 'code' of X"):
        InProcessFederation(frame, *rows[1:])
    with pytest.raises(ValueError, match=f"{named_part}.* Column 'code' of X"):
        RemoteFederation([PickledHost(named([rows]))]).hello()
    numbers = InProcessFederation(frame[["age"]].assign(code=[2001, 2002]), *rows[1:])
    assert numbers.hello().feature_names.tolist() == ["age", "code"]


@pytest.mark.parametrize("y", [DATA.y > 0, (DATA.y > 0) + 1, np.where(DATA.y > 0, "1", "2")])
def test_classes_do_not_depend_on_earlier_fits(y):
    """Nor does what a fit is given for the targets of a regressor change them."""
    rows = DATA.X, y, DATA.groups
    bounds = {"features": (-9.0, 9.0), "target": (1.4, 1.6), "classes": np.unique(y)}
    policy = SitePolicy(privacy=ClientPrivacy(epsilon=1.0, delta=1e-6, bounds=bounds))
    for federation in (
        InProcessFederation(*rows),
        RemoteFederation([PickledHost(named([rows]))]),
        InProcessFederation(*rows, policy=policy),
    ):
        with suppress(ValueError):  # text is no number
            federation.hello("regressor")
        assert_array_equal(federation.hello("classifier").classes, np.unique(y))
    regressor, federation = FedAvgRegressor(), InProcessFederation(*rows)
    if y.dtype.kind != "U":
        federation.hello("classifier")
        found = regressor.fit_federation(federation).params_
        assert_allclose(found, regressor.fit(rows[0], y, groups=rows[2]).params_, rtol=1e-12)
    found = FedAvgClassifier().fit_federation(federation)
    assert found.classes_.dtype == y.dtype
    assert_array_equal(found.classes_, np.unique(y))


def test_server_code_has_the_spec_of_a_model_only():
    """What takes rows is refused to the rooms of servers, whatever the class of the model."""
    for kind in (LinearModel, MLP, Location, Autoencoder):
        refused = kernels(kind)
        assert {"value_gradient", "losses", "best_response", "design", "encode"} <= refused
        # Nothing that takes rows is in the spec, and what is abstract there takes none.
        assert not refused & {name for name in dir(ModelSpec) if not name.startswith("__")}
    pool = StrictFederation(places_of(DATA, 2)).open(LinearModel().bind(4), 0)
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
