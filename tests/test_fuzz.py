"""Malformed and extreme arguments: an error that names the parameter, or a right result."""

import decimal
import functools
import inspect

import malformed
import numpy as np
import pandas as pd
import pytest
from malformed import masked, put
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse
from trials import some, spread

import skcfl
from skcfl import (
    LocalModels,
    LocalModelsClassifier,
    LocalModelsRegressor,
    OracleClustersRegressor,
    Training,
)
from skcfl.calls import CALLS as CALLS_BY_NAME
from skcfl.calls.first_order import MetaUpdate
from skcfl.datasets import make_clustered_regression
from skcfl.federation.inprocess import open_rows
from skcfl.graphs import complete_graph, from_adjacency, knn_graph
from skcfl.model_selection import lam_path
from skcfl.models import MLP

DATA = make_clustered_regression(6, 2, 3, n_samples=10, random_state=0)
X, Y, GROUPS = DATA.X, DATA.y, DATA.groups


TWICE = pd.DataFrame(np.ones((60, 3)), columns=["a", "a", "b"])


@pytest.mark.parametrize(
    ("cls", "y"),
    [
        (LocalModelsRegressor, put(Y, None, object)),
        (LocalModelsRegressor, put(Y, decimal.Decimal("NaN"), object)),
        (LocalModelsRegressor, masked(Y)),
        (LocalModelsRegressor, Y.astype("datetime64[s]")),
        (LocalModelsClassifier, put(Y > 0, None, object)),
        (LocalModelsClassifier, masked(Y > 0)),
        (LocalModels, put(Y, None, object).tolist()),
    ],
)
def test_missing_targets(cls, y):
    estimator = cls()
    with pytest.raises(ValueError, match=r"^y\b"):
        estimator.fit(X, y, groups=GROUPS)
    assert vars(estimator) == vars(cls())
    with pytest.raises(ValueError, match=r"^y\b"):
        kind = cls if cls is not LocalModels else LocalModelsRegressor
        kind().fit(X, Y > 0, groups=GROUPS).score(X, y, groups=GROUPS)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-1.0, "sample_weight must not be negative, got -1.0"),
        (put(np.ones(60), -1.0), "sample_weight must not be negative, got -1.0"),
        (np.full(60, np.nan), "sample_weight contains NaN"),
        (np.ones(59), "sample_weight.shape"),
        *((weights, "sample_weight") for weights in (np.nan, np.inf, 1e200, masked(np.ones(60)))),
        (np.zeros(60), "at least one non-zero"),
        (np.ones((60, 2)), "1D array or scalar"),
    ],
)
@pytest.mark.parametrize("cls", [LocalModelsRegressor, LocalModelsClassifier])
def test_weights_of_fit_and_score(cls, weights, message):
    y = Y > 0 if cls is LocalModelsClassifier else Y
    with pytest.raises(ValueError, match=message):
        cls().fit(X, y, groups=GROUPS, sample_weight=weights)
    with pytest.raises(ValueError, match=message):
        cls().fit(X, y, groups=GROUPS).score(X, y, groups=GROUPS, sample_weight=weights)


@pytest.mark.parametrize(
    ("value", "dtype"), [(1e308, np.float64), (-1e101, np.float64), (-1e16, np.float32)]
)
def test_numbers_that_overflow(value, dtype):
    limit = r"1e\+75 is possible" if dtype == np.float64 else r"1e\+15 is possible"
    with pytest.raises(ValueError, match=f"X holds numbers as large as .*{limit}"):
        LocalModelsRegressor().fit(put(X, value, dtype), Y, groups=GROUPS)
    with pytest.raises(ValueError, match=f"y holds numbers as large as .*{limit}"):
        LocalModelsRegressor().fit(X.astype(dtype), put(Y, value), groups=GROUPS)
    fitted = LocalModelsRegressor().fit(X.astype(dtype), Y, groups=GROUPS)
    with pytest.raises(ValueError, match="X holds numbers"):
        fitted.predict(put(X, value, dtype), groups=GROUPS)


@pytest.mark.parametrize("labels", [[0, 1, np.nan, 0, 1, 1], ["a", None, "a", "b", "b", "b"]])
def test_labels_that_are_missing(labels):
    for given in (labels, dict(zip(np.unique(GROUPS).tolist(), labels, strict=True))):
        with pytest.raises(ValueError, match="labels .* missing"):
            OracleClustersRegressor(given).fit(X, Y, groups=GROUPS)


def fit(estimator, X=X, y=Y, groups=GROUPS):
    """A call that fits."""
    return functools.partial(estimator.fit, X, y, groups=groups)


#: Calls that once were answered by other people's errors, or not at all, and what they say.
KNOWN = [
    (fit(skcfl.FPFCRegressor(0.3, training=Training(step_size=1e9))), r"FPFC diverged: .*=1e\+09"),
    (
        fit(skcfl.FedAvgRegressor(training=Training(averaging="model", batch_size=10**30))),
        "'batch_size' parameter",
    ),
    (fit(LocalModelsRegressor(), {"a": X}), r"^X\b"),
    (fit(skcfl.GTVRegressor(0.1, graph={"a": 1})), "graph must be an array of numbers, got dict"),
    (fit(skcfl.GTVRegressor(graph=np.ones((6, 5)))), r"graph must be a square .* shape \(6, 5\)"),
    (fit(skcfl.GTVRegressor(graph=1j * np.ones((6, 6)))), "graph must be an array of real"),
    (
        lambda: from_adjacency(sparse.csr_array(1j * np.ones((6, 6)))),
        "A must be a matrix of real weights, got dtype complex128",
    ),
    (fit(skcfl.IFCARegressor(2, init={"a": 1})), "init must be an array of numbers, got dict"),
    (
        lambda: lam_path(skcfl.GTVRegressor(), X, Y, GROUPS, lams={"a": 1}),
        "lams must be an array of numbers, got dict",
    ),
    (
        fit(LocalModelsRegressor(group_col="a"), TWICE, groups=None),
        "^X is not valid|^group_col='a' must name one column of X, found 2",
    ),
    (lambda: knn_graph(X, n_neighbors=-1), "'n_neighbors' parameter .* Got -1"),
    (lambda: complete_graph(-1), "'n_nodes' parameter .* Got -1"),
]


@pytest.mark.parametrize(("call", "message"), KNOWN)
def test_known_faults(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_networks_have_no_second_order_calls():
    """Nothing is trained in the place of an exact answer unless the caller says so."""
    model = MLP((2,), loss="squared_error").bind(3)
    groups = np.unique(GROUPS, return_inverse=True)[1]
    pool = open_rows(model, X, Y, groups, 6, random_state=0)
    w, together = np.zeros((6, pool.n_params)), np.zeros(6, dtype=int)
    calls = {
        "prox": (w, 1.0),
        "solve": (),
        "conjugate": (w,),
        "spectrum": (),
        "hessians": (w[:1], together),
        "hessian_products": (w[:1], w[:1], together),
        "hessian_diagonals": (w[:1], together),
        "hessian_solves": (w[:1], w[:1], together, 1.0),
        "rounding": (w,),
        "enclosures": (w[:1], together, w[:1], False),
    }
    for name, arguments in calls.items():
        with pytest.raises(ValueError, match=f"{name} needs .* got MLP.*LocalUpdate"):
            pool.ask(CALLS_BY_NAME[name], *arguments)
    with pytest.raises(ValueError, match=r"meta_update\(exact=True\) needs .* got MLP"):
        pool.ask(MetaUpdate, w, 1, 0.1, 0.1, exact=True)
    assert (pool.ledger.up, pool.ledger.down) == (0, 0)
    answered = {name for name in CALLS_BY_NAME if pool.can_answer(name)}
    assert not answered & {*calls, "mixture_sums", "posteriors", "posterior_sums"}
    assert answered >= {"losses", "objectives", "local_update", "meta_update", "recall"}


# ------------------------------------------------------------------------ calls at random

#: Calls of each target: fits are what users do, and have most arguments.
CALLS_OF_A_FIT, CALLS = 16, 7
# Parts of the calls: one is tried in a run, 32 when thorough.
SHARES = 96


def drawn_calls():
    """Some calls of every target, each with one or two arguments replaced, always the same."""
    rng = np.random.RandomState(0)
    for name, target in malformed.targets().items():
        cases = list(target.cases())
        for _ in range(CALLS_OF_A_FIT if name.endswith(".fit") else CALLS):
            # Two arguments at once find little more, and their errors may name either.
            chosen = {
                cases[i][0]: cases[i] for i in rng.randint(len(cases), size=1 + (rng.rand() < 0.1))
            }
            yield name, tuple(chosen.values())


@pytest.mark.parametrize("share", some(range(0, SHARES, 3), 1))
def test_malformed_calls(share):
    """An error that names the argument, or numbers that are finite; nothing else."""
    calls = list(drawn_calls())
    assert 3 * len(calls) >= 16000
    wrong = []
    for name, changes in calls[share::SHARES]:
        said = malformed.verdict(malformed.targets()[name], changes)
        if said is not None:
            wrong.append(f"{name} {changes}: {said}")
    assert not wrong, "\n".join(wrong)


#: Public names that are called with malformed arguments elsewhere, or are returned by functions.
ELSEWHERE = {
    *("ClusterStability", "ClusterStabilityDisplay", "cluster_stability", "EffectDisplay"),
    *("RandomEffectsDisplay", "SuspicionDisplay", "SklearnModel", "TorchModel"),
    # In fits of the estimators that take them.
    *("Record", "SplineBasis", "Training", "TreeBasis"),
    *("LocalModel", "ModelSpec", "Penalty", "ConcavePenalty"),
    *("ClusteringConstants", "PartitionCertificate", "RecoveryInterval", "LamPath"),
}
#: Of the modules of solvers and of operators, which are the interface of the developers.
SOLVERS = {"admm", "ama", "mean_regularised", "pdmm", "primal_dual"}
OPERATORS = {"CenteredClipping", "GeometricMedian", "Krum", "TrimmedMean"}


def test_every_public_name_is_called():
    modules = (
        *(malformed.graphs, malformed.datasets, malformed.certificates, malformed.inspection),
        *(malformed.model_selection, malformed.penalties, skcfl.models, skcfl),
    )
    targets = malformed.targets()
    called = {name.split(".")[0].split("{")[0].split(" ")[0] for name in targets}
    for module in modules:
        names = {name for name in module.__all__ if not name.endswith("Warning")}
        assert not names - called - ELSEWHERE, module.__name__
    assert called >= SOLVERS | OPERATORS


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (KeyError("W"), "KeyError"),
        (np.linalg.LinAlgError("singular"), "does not name"),
        (ValueError("a scipy text"), "does not name"),
        (ValueError("X is wrong"), None),
        (float("nan"), "nan"),
        (1.0, None),
    ],
)
def test_verdicts(outcome, said):
    """The judge sees what it is there for."""

    def call(X):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    target = malformed.target(call, X=1)
    found = malformed.verdict(target, [("X", "float('nan')")])
    assert found is None if said is None else said in found
    warns = malformed.target(lambda X: float(np.float64(X) * 1e308), X=1.0)
    assert "RuntimeWarning: overflow" in malformed.verdict(warns, [("X", "1e308")])


# ------------------------------------------------------------------- extreme, and right

REGRESSORS = [
    cls
    for cls, given in malformed.estimators()
    if cls.__name__.endswith("Regressor") and not given and "FPFC" not in cls.__name__
]


@functools.cache
def short_fit(cls):
    """A fit in the units of the data, which none of the tests changes."""
    return cls(**malformed.short_parameters(cls)).fit(X, Y, groups=GROUPS)


@pytest.mark.parametrize("cls", spread(REGRESSORS, 3), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    ("of_X", "of_y"),
    some([(2.0**-200, 2.0**130), (2.0**200, 2.0**-60), (1.0, 2.0**-60), (2.0**-200, 1.0)], 1),
)
def test_units_however_large(cls, of_y, of_X):
    """Units of X change nothing, those of y the predictions, and lam of fusion penalties."""
    given, expected = malformed.short_parameters(cls), short_fit(cls)
    if "graph" in inspect.signature(cls).parameters:
        given["lam"] *= of_y
    found = cls(**given).fit(of_X * X, of_y * Y, groups=GROUPS)
    assert_array_equal(found.labels_, expected.labels_)
    got = found.predict(of_X * X, groups=GROUPS) / of_y
    assert_allclose(got, expected.predict(X, groups=GROUPS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weight", [1e20, 1e70])
def test_equal_weights_however_large(weight):
    """Without a penalty they change nothing, and features do not become constant."""
    weights = np.full(len(Y), weight)
    expected = LocalModelsRegressor(alpha=0.0).fit(X, Y, groups=GROUPS)
    found = LocalModelsRegressor(alpha=0.0).fit(X, Y, groups=GROUPS, sample_weight=weights)
    assert_allclose(found.coef_, expected.coef_, rtol=1e-9)
    fusion = skcfl.ConvexClusteredFLRegressor(0.05).fit(X, Y, groups=GROUPS, sample_weight=weights)
    assert fusion.dual_gap_ <= 1e-6 * fusion.objective_
