"""What every estimator promises, over one table: order, weights, units, places, faults."""

import functools

import numpy as np
import pytest
from cases import (
    BOTH,
    BY_METHOD,
    CASES,
    EVERYDAY,
    SMALL,
    Case,
    booked,
    compare,
    fitted,
    make,
    predicted,
)
from numpy.testing import assert_allclose, assert_array_equal
from pickled_hosts import PickledHost, named, parts_of
from sklearn.metrics import adjusted_rand_score
from trials import THOROUGH, spread

from skcfl import Training
from skcfl.clients.blocks import make_blocks
from skcfl.datasets import make_clustered_classification
from skcfl.exceptions import MessageError
from skcfl.federation import FanOutFederation, Faults, InProcessFederation
from skcfl.federation.remote import RemoteFederation
from skcfl.federation.serialization import RESULTS, dumps, loads
from skcfl.models import MLP
from skcfl.testing import StrictFederation

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::skcfl.exceptions.RejectedClientWarning"),
]
every_method = pytest.mark.parametrize("case", BY_METHOD, ids=str)
#: What is left of a fit when its client is lost: figures of the whole fit.
FIGURES = ("alpha_", "lam_", "objective_", "n_clusters_")
NETWORKS = ("FedProto", "FedPAC")


def assert_same_predictions(found, wanted, case, rows=slice(None), atol=1e-7, ids=None):
    X, _, groups = case.rows
    expected = predicted(wanted, X[rows], groups[rows])
    groups = groups if ids is None else ids
    got = predicted(found, X[rows], groups[rows])
    assert_allclose(got, expected, rtol=0, atol=atol * max(np.abs(expected).max(), 1.0))


# --------------------------------------------------------------------------- rows and clients


@every_method
def test_order_of_rows(case):
    """Searches and draws included: what is drawn about a row depends on what it holds."""
    mixed = np.random.RandomState(0).permutation(len(case.data.y))
    found = case.fit(*(values[mixed] for values in case.rows))
    assert_same_predictions(found, fitted(case), case)


#: Nothing is rounded to single precision, and no starts and folds are drawn.
DRAWN = (*NETWORKS, "FedEM", "CFL")
EXACT = [case for case in (CASES if THOROUGH else BY_METHOD) if not case.options]
EXACT = [case for case in EXACT if not case.name.startswith(DRAWN)]
DOUBLE = Case("FedProtoClassifier", {"model": MLP((4,), precision="double"), "max_iter": 5})


@pytest.mark.parametrize("case", [*spread(EXACT, 7), DOUBLE], ids=str)
def test_names_of_clients(case):
    X, y, groups = case.rows
    ids = np.unique(groups)
    other = dict(zip(ids, ids[::-1], strict=True))
    moved = np.array([other[group] for group in groups])
    options = {}
    if case.name.startswith("Oracle"):
        options["labels"] = {other[id]: k for id, k in case.make().labels.items()}
    found = case.fit(X, y, moved, **options)
    wanted = case.fit(X, y, groups) if case is DOUBLE else fitted(case)
    assert_same_predictions(found, wanted, case, atol=1e-6, ids=moved)


@pytest.mark.parametrize("case", [*EXACT, DOUBLE], ids=str)
def test_rows_given_twice_weigh_twice(case):
    counts = np.random.RandomState(0).randint(0, 4, len(case.data.y))
    twice = case.fit(*(np.repeat(values, counts, axis=0) for values in case.rows))
    weighed = case.fit(*case.rows, counts.astype(float))
    assert_same_predictions(weighed, twice, case, atol=1e-6)


EACH = [case for case in BY_METHOD if not case.name.startswith("FedProto")]


@pytest.mark.parametrize("case", [*EACH, DOUBLE], ids=str)
def test_new_rows_given_twice_weigh_twice(case):
    """Of new clients, and of known ones."""
    X, y, groups = case.rows
    model = case.fit(X, y, groups) if case is DOUBLE else fitted(case)
    new = np.array([f"new {id}" for id in groups])
    counts = np.random.RandomState(0).randint(1, 4, len(y))
    more_X, more_y, more_new, more_groups = (
        np.repeat(values, counts, axis=0) for values in (X, y, new, groups)
    )
    adapted = [model.adapt(X, y, new, counts), model.adapt(more_X, more_y, more_new)]
    assert_allclose(*(predicted(each, X, new) for each in adapted), rtol=1e-6, atol=1e-9)
    losses = [model.cluster_losses(X, y, groups, counts)]
    losses.append(model.cluster_losses(more_X, more_y, more_groups))
    assert_allclose(*losses, rtol=1e-6)
    if case is not DOUBLE:  # networks are refused
        updated = model.update(X, y, groups, counts)
        assert_same_predictions(updated, model.update(more_X, more_y, more_groups), case)


#: Penalties of differences, and folds by clients, know of clients without rows.
KNOWS = ("ConvexClustered", "GTV", "PartialPooling")


@every_method
def test_rows_that_weigh_nothing(case):
    """Their client is predicted for, and the others are as if it were not there."""
    X, y, groups = case.rows
    empty = groups == np.unique(groups)[1]
    found = case.fit(X, y, groups, np.where(empty, 0.0, 1.0))
    output = predicted(found, X[empty], groups[empty])
    assert np.isfinite(output).all()
    if output.ndim == 2:
        assert_allclose(output.sum(axis=1), 1.0)
    if not (case.name.startswith(KNOWS) or case.options.get("lam") == "auto"):
        X, y, groups = X[~empty], y[~empty], groups[~empty]
        wanted = predicted(case.fit(X, y, groups), X, groups)
        output = predicted(found, X, groups)
        assert_allclose(output, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("name", "aggregation"),
    [("FedPACClassifier", "mean"), ("CFLClassifier", "median"), ("FedProtoClassifier", "mean")],
)
def test_rounds_are_of_clients_whose_rows_weigh(name, aggregation):
    """Of six clients one is drawn, and four weigh nothing."""
    case = Case(name, {"aggregation": aggregation, "training": Training(participation=0.2)})
    X, y, groups = case.rows
    weights = np.where(groups < np.unique(groups)[4], 0.0, 1.0)
    for seed in range(3):
        model = case.fit(X, y, groups, weights, random_state=seed, max_iter=8)
        assert not model.rejected_clients_.size
        assert_allclose(predicted(model, X, groups).sum(axis=1), 1.0, rtol=1e-6)


#: Linear models of clusters and of clients, networks, posteriors and mixtures: what predicts.
SCORES = ["IFCAClassifier", "FedProtoClassifier", "PartialPoolingClassifier", "FedEMClassifier"]
SCORES += ["DittoClassifier"]


@pytest.mark.parametrize("name", [n for n in EVERYDAY if n in SCORES or THOROUGH and "Cla" in n])
def test_rows_far_out_have_finite_scores(name):
    three = make_clustered_classification(6, 2, 3, n_samples=12, n_classes=3, random_state=0)
    other = make(name, 10, n_clusters=2, basis="linear")
    other.fit(three.X, three.y, groups=three.groups)
    for data, model in ((SMALL["Classifier"], fitted(Case(name))), (three, other)):
        for far in (1e3, 1e14):
            scores = model.decision_function(far * data.X, groups=data.groups)
            assert np.isfinite(scores).all()
            shares = model.predict_proba(far * data.X, groups=data.groups)
            assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-6)


# ---------------------------------------------------------------------------------------- units


@pytest.mark.parametrize("case", [c for c in CASES if "Regressor" in c.name], ids=str)
def test_units_of_the_target(case):
    """A slope and a constant of a million new units; rounds stop a little earlier or later."""
    (X, y, groups), slope, constant = case.rows, -50.0, 5e7
    # Distances of models, which lam weighs, are in these units too, and losses in their squares.
    told = case.name.startswith(("ConvexClusteredFL", "GTV")) and "lam" not in case.options
    options = {"lam": 0.1 * abs(slope)} if told else {}
    one, other = fitted(case), case.fit(X, slope * y + constant, groups, **options)
    moved = (other.predict(X, groups=groups) - constant) / slope
    assert_allclose(moved, one.predict(X, groups=groups), rtol=0, atol=1e-5 * y.std())
    assert adjusted_rand_score(one.labels_, other.labels_) == 1.0


@pytest.mark.parametrize(
    ("name", "loss"),
    [("GTVRegressor", "gamma"), ("FPFCRegressor", "gamma"), ("IFCARegressor", "tweedie")],
)
def test_units_of_amounts(name, loss, slope=1e5):
    """Losses with a dispersion do not know them, and training starts from the mean."""
    case = Case(name, {"loss": loss})
    X, y, groups = case.rows
    y = np.exp(y / y.std())
    one, other = case.fit(X, y, groups), case.fit(X, slope * y, groups)
    expected = np.log(one.predict(X, groups=groups))
    moved = np.log(other.predict(X, groups=groups) / slope)
    assert_allclose(moved, expected, rtol=0, atol=1e-6)
    assert_array_equal(other.labels_, one.labels_)


@pytest.mark.parametrize("case", spread(EXACT, 7), ids=str)
def test_units_of_a_feature(case):
    """A slope, and a constant that is as large in the new units."""
    X, y, groups = case.rows
    other = X.copy()
    other[:, 1] = 1e4 * X[:, 1] + 1e8
    found, wanted = case.fit(other, y, groups), fitted(case)
    assert_array_equal(found.labels_, wanted.labels_)
    expected = predicted(wanted, X, groups)
    assert_allclose(predicted(found, other, groups), expected, atol=1e-6 * np.abs(expected).max())
    assert_allclose(found.coef_[..., 1] * 1e4, wanted.coef_[..., 1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("case", spread(EXACT, 7), ids=str)
def test_a_constant_feature_has_no_coefficient(case):
    """What it differs from its mean by is rounding, beside an intercept one more intercept."""
    X, y, groups = case.rows
    weights = np.random.RandomState(0).uniform(0.5, 2.0, len(y))
    levels = (np.full(len(y), value) for value in np.linspace(0.1, 9.9, 99))
    level = next(v for v in levels if np.average(v, weights=weights) != v[0])
    found = case.fit(np.column_stack([X, level]), y, groups, weights)
    assert np.abs(found.coef_[..., -1]).max() <= 1e-9 * np.abs(found.coef_).max()


@pytest.mark.parametrize("case", spread(EXACT, 7), ids=str)
def test_single_precision_is_kept(case):
    X, y, groups = case.rows
    found = case.fit(X.astype(np.float32), y, groups)
    assert found.params_.dtype == found.cluster_params_.dtype == np.float32
    assert found.predict_cluster(X, 0).dtype == (np.float32 if "Reg" in case.name else y.dtype)
    got, wanted = predicted(found, X, groups), predicted(fitted(case), X, groups)
    assert got.dtype == np.float32
    assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


# --------------------------------------------------------------------------------------- places


def federations_of(case):
    """Clients of three federations here, and of three parts at two hosts in no order."""
    parts = parts_of(case.data, 3)
    hosts = [PickledHost(named(parts)[k::2]) for k in (0, 1)]
    here = FanOutFederation([InProcessFederation(*part) for part in parts])
    order = np.concatenate([np.flatnonzero(np.isin(case.data.groups, p[2])) for p in parts])
    return StrictFederation(here), RemoteFederation(hosts), order


#: A fit opens a federation itself, and hosts are put together as federations here are: only some
#: cases are fitted to all three.
SPREAD_OUT = spread([case for case in BY_METHOD if not case.options], 4)


@every_method
def test_places_do_not_matter(case):
    """One place, three places, and hosts whose messages are pickled: one result, one account."""
    wanted = fitted(case)
    rtol = 2e-3 if case.name.startswith(NETWORKS) else 1e-10
    here, there, _ = federations_of(case)
    if case in SPREAD_OUT:
        found = case.make().fit_federation(case.federation())
        compare(found, wanted, rtol=0)
        assert booked(found) == booked(wanted)
    for federation in (here, there) if case in SPREAD_OUT else (there,):
        found = case.make().fit_federation(federation)
        compare(found, wanted, rtol)
        assert_allclose(found.objective_, wanted.objective_, rtol=rtol)


@pytest.mark.parametrize("case", [c for c in BY_METHOD if not c.options], ids=str)
def test_predictions_at_places(case):
    model, (X, y, groups) = fitted(case), case.rows
    fan_out, remote, order = federations_of(case)
    if not model._predicts_by_client:
        with pytest.raises(NotImplementedError, match="predict and score on rows at hand"):
            model.score_federation(remote)
        return
    for federation, rows in ((case.federation(), slice(None)), (remote, order)):
        score = model.score(X, y, groups=groups)
        assert_allclose(model.score_federation(federation), score, rtol=1e-10)
        labels = model.assign(X, y, groups=groups)
        assert_array_equal(model.assign_federation(federation), labels)
        got, wanted = model.predict_federation(federation), model.predict(X, groups=groups)[rows]
        if wanted.dtype.kind == "f":
            assert_allclose(got, wanted, rtol=1e-10)
        else:
            assert_array_equal(got, wanted)
            got = model.predict_federation(federation, "predict_proba")
            assert_allclose(got, model.predict_proba(X, groups=groups)[rows], rtol=1e-10)


NEURAL = ["IFCA", "GTV", "FPFC", "Ditto", "PFedMe", "PerFedAvg", "FedRep", "FedALA", "FedProto"]
SMALL_NETS = {"hidden_layer_sizes": (4,), "max_iter": 5, "batch_size": 6, "lam": 0.01}
NETS = [Case(f"{name}Classifier", SMALL_NETS) for name in [*NEURAL, "FedPAC"]]


@pytest.mark.parametrize("case", spread(NETS, 5), ids=str)
def test_networks_and_batches_at_places(case):
    found = case.make().fit_federation(federations_of(case)[0])
    compare(found, case.fit(*case.rows), rtol=2e-3)  # single precision


LOCAL_NETS = [Case(f"{name}Classifier", SMALL_NETS) for name in ("LocalModels", "OracleClusters")]
DRAWS = {"participation": 0.5, "batch_size": 8, "local_steps": 3}
HELD = Training(**DRAWS, averaging="model", hold_out=0.3)
DRAWN_CASES = [Case("IFCAClassifier", {"training": HELD, "init": "random"})]
DRAWN_CASES += [Case("FPFCRegressor", {"training": Training(**DRAWS)})]


#: The calls in threads are in tests/federation/test_inprocess.py; what clients keep is here.
TWICE = [case for case in BY_METHOD if case.options or case.name in BOTH]
THREADED = spread([case for case in BY_METHOD if case not in TWICE], 5)
THREADED += [*spread([*NETS, *LOCAL_NETS], 3), *DRAWN_CASES]


@pytest.mark.parametrize("case", THREADED, ids=str)
def test_threads_change_nothing(case, monkeypatch):
    monkeypatch.setattr("skcfl.federation.inprocess.PARALLEL_WORK", 0)
    monkeypatch.setattr("skcfl.numerics.threads.PARALLEL_VALUES", 0)
    monkeypatch.setattr("skcfl.federation.scaling.CHUNK_BYTES", 1000)
    monkeypatch.setattr(make_blocks, "__defaults__", (1000, *make_blocks.__defaults__[1:]))
    few = {"max_iter": 2, "n_init": 2, "basis": "linear"}
    one, two = (case.fit(*case.rows, n_jobs=k, **few) for k in (None, 2))
    assert_array_equal(one.params_, two.params_)
    assert_array_equal(one.labels_, two.labels_)
    assert booked(one) == booked(two)
    for name, column in getattr(one, "history_", {}).items():
        if name != "seconds":
            assert_array_equal(column, two.history_[name])


# --------------------------------------------------------------------------------------- faults


LOST = [(case, "dead") for case in BY_METHOD]
LOST += [(case, "false") for case in spread([case for case in CASES if not case.options], 8)]


@functools.cache
def fit_without(name, gone):
    """The fit without a client, made once for all faults."""
    case = next(case for case in [*BY_METHOD, *CASES] if str(case) == name)
    X, y, groups = case.rows
    others, less = groups != gone, lost_options(case)
    if case.name.startswith("Oracle"):
        less["labels"] = {id: k for id, k in case.make().labels.items() if id != gone}
    return case.fit(X[others], y[others], groups[others], **less)


def lost_options(case):
    """None is chosen where clients may be lost: lines, and few rounds of networks."""
    return {"basis": "linear"} | ({"max_iter": 4} if case.name.startswith(NETWORKS) else {})


@pytest.mark.parametrize(("case", "fault"), LOST, ids=str)
def test_a_client_that_is_lost_or_rejected_is_in_nothing(case, fault):
    """Scales, alpha, lam, folds, starts and numbers of clients are those of the others."""
    if case.name == "FedProtoClassifier" and fault == "false":
        pytest.skip("its clients send prototypes, which are no answers of Faults")
    X, y, groups = case.rows
    ids = np.unique(groups)
    gone, kept, others = ids[3], ids != ids[3], groups != ids[3]
    # Other units than the others'.
    X = np.where(others[:, None], X, 1e6 * X)
    wanted = fit_without(str(case), gone)
    faults = {"dead": [gone]} if fault == "dead" else {"attack": "nan", "false": [gone]}
    federation = case.federation(X, y, groups, faults=Faults(**faults), retries=1)
    found = case.make(**lost_options(case)).fit_federation(federation)
    missing = [found.missing_clients_.tolist(), found.rejected_clients_.tolist()]
    assert missing == ([[gone], []] if fault == "dead" else [[], [gone]])
    rows = X[others], groups[others]
    expected = predicted(wanted, *rows)
    assert_allclose(predicted(found, *rows), expected, rtol=1e-10, atol=1e-10)
    assert_allclose(found.params_[kept], wanted.params_, rtol=1e-10, atol=1e-10)
    for name in FIGURES:
        if hasattr(wanted, name) and len(wanted.cluster_params_) < len(wanted.params_):
            assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-10, err_msg=name)
    # Attributes with an entry per client have one for each; nodes of trees are no clients.
    for name, value in vars(wanted).items():
        if name.endswith("_") and name != "tree_" and np.shape(value)[:1] == (len(ids) - 1,):
            assert np.shape(getattr(found, name))[0] == len(ids), name


# -------------------------------------------------------------------------------- on their way


@pytest.mark.parametrize("case", [c for c in BY_METHOD if not c.options], ids=str)
def test_fitted_estimators_travel(case):
    model = fitted(case)
    X, _, groups = case.rows
    message = dumps(model, RESULTS)
    found = loads(message, packages=RESULTS)
    assert type(found) is type(model)
    assert found.__dict__.keys() == model.__dict__.keys()
    assert_array_equal(found.predict(X, groups=groups), model.predict(X, groups=groups))
    # The same bytes again: nothing was lost on the way.
    assert dumps(found, RESULTS) == message
    with pytest.raises(MessageError, match="which is not trusted here"):
        loads(message)
