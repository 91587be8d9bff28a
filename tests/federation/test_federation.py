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

from skcfl import (
    FedAvgClassifier,
    FedAvgRegressor,
    GTVRegressor,
    IFCARegressor,
    LamSearch,
    PartialPoolingRegressor,
)
from skcfl.federation import ClientPrivacy, FanOutFederation, InProcessFederation, SitePolicy
from skcfl.federation.bounds import EXITS, Limits
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.rows import Rows
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
    for changed, message in (
        ({"y": [1.0, 2.0]}, "y must have one entry per row"),
        ({"groups": ["a", None, "b"]}, "groups"),
    ):
        with pytest.raises(ValueError, match=message):
            one(3, **changed)
    by_rows, missing = LamSearch(cv=KFold(3)), one(3, [1.0, np.nan, 2.0])
    for model, federation, message in (
        (FedAvgRegressor(group_col=0), one(3), "group_col must be None"),
        (IFCARegressor(n_clusters=2), one(3), "n_clusters=2 is more"),
        (FedAvgRegressor(), missing, "y"),
        (GTVRegressor(search=by_rows), places_of(DATA, 3), "cv must be a number of folds"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit_federation(federation)


@pytest.mark.parametrize("sparse_rows", [False, True])
def test_units_by_medians_over_clients(sparse_rows):
    """Of equal clients those of all rows; one in other units has no say; places do not matter."""
    rng = np.random.RandomState(0)
    X, groups = 3.0 + 2.0 * rng.normal(size=(2000, 2)), np.repeat(np.arange(10), 200)
    X[:, 1] = 0.0
    X[:20, 1] = 5.0  # constant for all clients but one
    y, wrap = X[:, 0], sparse.csr_array if sparse_rows else np.asarray

    def units(X):
        rows, model = (wrap(X), y, groups), LinearModel(standardize=True).bind(2)
        parts = [InProcessFederation(*where(rows, some)) for some in (groups < 5, groups >= 5)]
        whole, apart = (
            federation.open_with_folds(model, 0, robust=True)[0].scaling
            for federation in (InProcessFederation(*rows), FanOutFederation(parts))
        )
        assert_allclose(whole.scale, apart.scale)
        return whole

    found = units(X)
    assert_allclose(found.scale[0], X[:, 0].std(), rtol=0.03)
    assert_allclose(found.mean[0], 0.0 if sparse_rows else X[:, 0].mean(), atol=0.1)
    assert_allclose(found.scale[1], np.sqrt(0.1) * 5.0)
    X[groups == 3] *= 1e6
    assert_allclose(units(X).scale[0], found.scale[0], rtol=0.05)


@pytest.mark.parametrize("dtype", [object, "category", "datetime64[ns]"])
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
    """Nor does what a fit is given for the targets of a regressor change them, or weights."""
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
    weighed = make("FedAvgClassifier", class_weight="balanced")
    first = weighed.fit_federation(federation).params_
    assert_array_equal(weighed.fit_federation(federation).params_, first)
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


# --------------------------------------------------------------------- honest places with odd rows


K, N = 5, 20
CODES = np.repeat(np.arange(K), N)
GROUPS = np.array([f"c{i}" for i in range(K)])[CODES]


def one_host_a_client(X, y, groups):
    """A federation in which each client is at a host of its own."""
    parts = [(X[own], y[own], groups[own]) for own in groups == np.unique(groups)[:, None]]
    return RemoteFederation([PickledHost([part]) for part in named(parts)])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "estimator, zero",
    [
        (FedAvgRegressor(loss="poisson"), "y"),
        (IFCARegressor(n_clusters=2, random_state=0), "y"),
        (FedAvgClassifier(), "X"),
    ],
)
def test_zeros_only(estimator, zero):
    rng = np.random.RandomState(0)
    X = rng.normal(size=(len(CODES), 1))
    y = rng.poisson(np.exp(X[:, 0])).astype(float)
    (X if zero == "X" else y)[CODES == 2] = 0
    y = (y > 0).astype(int) if zero == "X" else y
    found = estimator.fit_federation(one_host_a_client(X, y, GROUPS)).params_
    assert_allclose(found, estimator.fit(X, y, groups=GROUPS).params_, rtol=1e-7)


@pytest.mark.parametrize("n_rows", [0, 3])
@pytest.mark.parametrize("policy", [None, SitePolicy()])
def test_types_do_not_depend_on_the_number_of_rows(n_rows, policy):
    """A part of the rows, such as a fold, may have none of a place."""
    X, y, codes = np.zeros((3, 2)), np.zeros(3, int), np.zeros(3, int)
    limits, model = Limits(np.array([3]), np.array([3.0]), 2), LinearModel("log_loss")
    federation = InProcessFederation(X, y, codes, policy=policy)
    model = model.bind(2, n_classes=2)
    (rows,) = federation.rows(model, federation.hello("classifier"))
    site = rows.site_of(model, np.arange(n_rows))
    assert site.facts()[1].dtype == float
    limits.check_facts(site.facts())
    rows = Rows(X[:n_rows], y[:n_rows], codes[:n_rows], None, np.arange(1))
    assert rows.class_totals(2).dtype == rows.capped(2.0).weights.dtype == float
    for step in ("sums", "levels", "means"):
        EXITS["moments"](rows.moments("features", step), ("features", step), limits, {})


def test_fits_in_double_precision_leave_single_precision():
    X = np.random.RandomState(0).normal(size=(len(CODES), 3)).astype(np.float32)
    y = np.sin(2 * X[:, 0])
    parts = named([(X[own], y[own], GROUPS[own]) for own in (CODES == 0, CODES == 1, CODES > 1)])
    federation = RemoteFederation([PickledHost(parts[:2]), PickledHost(parts[2:])])
    model = PartialPoolingRegressor(basis="splines", n_clusters=1).fit_federation(federation)
    assert np.isfinite(model.score_federation(federation))
    assert federation.hello().dtype == np.float32
