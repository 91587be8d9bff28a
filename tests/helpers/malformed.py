"""Malformed and extreme calls of everything public, as tables: targets, arguments, values."""

import datetime
import decimal
import functools
import inspect
import re
import warnings
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.preprocessing import StandardScaler

import skcfl
from skcfl import Record, certificates, datasets, graphs, inspection, model_selection, penalties
from skcfl._option_objects import Options
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.models import MLP, Autoencoder, LinearModel, Location
from skcfl.rounds.aggregation import CenteredClipping, GeometricMedian, Krum, TrimmedMean

#: What a call may end in. InvalidParameterError and NotFittedError are ValueErrors.
ALLOWED = (ValueError, TypeError)
#: Warnings that say what the matter is; those of numpy's arithmetic are RuntimeWarnings.
QUIET = (UserWarning,)

N_CLIENTS, N_ROWS, N_FEATURES = 6, 8, 2


@functools.cache
def rows(kind):
    """Features, targets and ids of the base call."""
    sizes = dict(n_samples=N_ROWS, random_state=0)
    if kind == "classifier":
        data = make_clustered_classification(N_CLIENTS, 2, N_FEATURES, **sizes)
    else:
        data = make_clustered_regression(N_CLIENTS, 2, N_FEATURES, **sizes)
    for array in (data.X, data.y, data.groups):
        array.setflags(write=False)
    return data.X, data.y, data.groups


# --------------------------------------------------------------------------------- values


class Opaque:
    """An object that is nothing in particular."""

    def __repr__(self):
        return "Opaque()"


NAMES = globals() | {"datetime": datetime, "StandardScaler": StandardScaler}
#: Things that few parameters take, as Python writes them: evaluated anew for every call.
ANYTHING = {
    code: functools.partial(eval, code, NAMES)
    for code in (
        *("None", "float('nan')", "float('inf')", "-float('inf')", "-1", "0", "1", "0.5", "2.5"),
        *("True", "1e308", "-1e308", "1e155", "1e-320", "10**30", "-(10**30)", "2**63", "10**9"),
        *("'nonsense'", "''", "b'nonsense'", "1j", "Opaque()", "int", "len", "[]", "[None, None]"),
        *("[[1.0], [1.0, 2.0]]", "['a', 'b']", "()", "(2, 1)", "(0, 1e308)", "{}"),
        *("{'a': 1.0, 'b': 2.0}", "{1, 2}", "range(3)", "(i for i in range(3))"),
        *("decimal.Decimal('NaN')", "datetime.date(2024, 1, 1)", "np.datetime64('NaT', 'D')"),
        *("pd.NA", "np.float32('nan')", "np.full((2, 2), np.nan)", "np.full(2, np.inf)"),
        *("np.array(1.0)", "np.ones((2, 2, 2))", "np.zeros((0, 2))"),
        *("np.array([[0, 1j], [1j, 0]])", "np.array([None, 'a', 1.0], dtype=object)"),
        *("np.array(['a', 'b'])", "np.array(['2024-01-01', 'NaT'], dtype='datetime64[D]')"),
        *("np.ma.array([1.0, 2.0], mask=[0, 1])", "np.ones((2, 3))", "-np.ones((2, 2))"),
        *("np.full((2, 2), 1e308)", "sparse.csr_array(np.eye(3))"),
        *("sparse.csr_array(np.full((2, 2), np.nan))", "sparse.csr_array([[0, 1j], [1j, 0]])"),
        *("pd.DataFrame({'a': [1.0, 2.0], 'b': ['x', None]})", "pd.Series([1.0, None])"),
        "StandardScaler()",
    )
}


def put(values, value, dtype=None):
    """A copy with one entry replaced."""
    values = np.array(values, dtype=dtype)
    values.ravel()[min(5, values.size - 1)] = value
    return values


def masked(values):
    return np.ma.array(values, mask=put(np.zeros(np.shape(values), bool), True))


#: What is done to an array of numbers.
ARRAYS = {
    **{
        f"one {value!s:.9}": functools.partial(put, value=value, dtype=dtype)
        for dtype, values in {
            float: (np.nan, np.inf, 1e308, -1e308, 1e155, 1e101, 9e74, 1e30, 1e-310),
            object: (None, pd.NA, decimal.Decimal("NaN"), "x", 10**400),
            np.float32: (np.float32(3e38), np.float32(9e14)),
        }.items()
        for value in values
    },
    "all nan": lambda a: np.full(np.shape(a), np.nan),
    "zeros": lambda a: np.zeros(np.shape(a)),
    "equal": lambda a: np.full(np.shape(a), 7.0),
    "times 1e-160": lambda a: np.asarray(a, float) * 1e-160,
    "times 1e-320": lambda a: np.asarray(a, float) * 1e-320,
    "times 1e160": lambda a: np.asarray(a, float) * 1e160,
    "plus 1e15": lambda a: np.asarray(a, float) + 1e15,
    "plus 1e74": lambda a: np.asarray(a, float) + 1e74,
    "integers": lambda a: np.arange(np.size(a)).reshape(np.shape(a)),
    "int8": lambda a: (np.arange(np.size(a)) % 100).astype(np.int8).reshape(np.shape(a)),
    "int64 max": lambda a: np.full(np.shape(a), np.iinfo(np.int64).max),
    "uint64": lambda a: (np.arange(np.size(a), dtype=np.uint64) % 5).reshape(np.shape(a)),
    "bool": lambda a: np.arange(np.size(a)).reshape(np.shape(a)) % 2 == 0,
    "float16": lambda a: np.asarray(a, np.float16),
    "longdouble": lambda a: np.asarray(a, np.longdouble),
    "complex": lambda a: np.asarray(a, complex) + 1j,
    "text": lambda a: np.full(np.shape(a), "x"),
    "dates": lambda a: np.zeros(np.shape(a), "datetime64[s]"),
    "masked": masked,
    "sparse": lambda a: sparse.csr_array(np.atleast_2d(np.asarray(a, float))),
    "sparse coo": lambda a: sparse.coo_array(np.atleast_2d(np.asarray(a, float))),
    "short": lambda a: np.asarray(a)[:-1],
    "one row": lambda a: np.asarray(a)[:1],
    "no rows": lambda a: np.asarray(a)[:0],
    "no columns": lambda a: np.zeros((len(a), 0)),
    "one more axis": lambda a: np.asarray(a)[..., None],
    "two copies": lambda a: np.column_stack([a, a]),
    "flat": lambda a: np.asarray(a).ravel(),
    "transposed": lambda a: np.asarray(a).T,
    "dict": lambda a: {"a": np.asarray(a)},
    "frame of text": lambda a: pd.DataFrame({"a": ["x"] * len(a), "b": ["y"] * len(a)}),
    "names twice": lambda a: pd.DataFrame(np.column_stack([a, a])[:, :2], columns=["a", "a"]),
    "negative": lambda a: -np.abs(np.asarray(a, float)) - 1.0,
    "tiny": lambda a: np.full(np.shape(a), 1e-300),
}

#: What is done to ids.
IDS = {
    "one nan": lambda g: put(np.arange(len(g)), np.nan, float),
    "one None": lambda g: put(g, None, object),
    "one NaT": lambda g: put(np.zeros(len(g), "datetime64[D]"), np.datetime64("NaT", "D")),
    "one Decimal NaN": lambda g: put(
        [decimal.Decimal(1)] * len(g), decimal.Decimal("NaN"), object
    ),
    "one NA": lambda g: pd.array(put(np.zeros(len(g)), np.nan), dtype="Int64"),
    "masked": masked,
    "mixture": lambda g: put(g, 3, object),
    "one client": lambda g: np.zeros(len(g), int),
    "a client a row": lambda g: np.arange(len(g)),
    "tuples": lambda g: [("a", str(i)) for i in g],
    "sets": lambda g: [frozenset([i]) for i in g],
    "lists": lambda g: [[i] for i in g],
    "dicts": lambda g: [{"a": i} for i in g],
    "complex": lambda g: np.arange(len(g)) % 2 + 1j,
    "huge integers": lambda g: [10**400 + (i % 3) for i in range(len(g))],
    "huge floats": lambda g: np.full(len(g), 1e300),
    "short": lambda g: g[:-1],
    "no ids": lambda g: g[:0],
    "column": lambda g: np.asarray(g)[:, None],
    "text": lambda g: "client",
    "dict": lambda g: dict.fromkeys(range(len(g)), "a"),
    "set": lambda g: set(g),
    "sparse": lambda g: sparse.csr_array(np.ones((len(g), 1))),
    "frame": lambda g: pd.DataFrame({"a": g}),
    "number": lambda g: 3,
    "generator": lambda g: (i for i in g),
    "bytes": lambda g: np.asarray(g).astype("S"),
    "objects": lambda g: [Opaque() for _ in g],
    "empty text": lambda g: np.full(len(g), ""),
    "categorical": lambda g: pd.Categorical(g),
    "structured": lambda g: np.zeros(len(g), "i4,i4"),
}


# -------------------------------------------------------------------------------- targets


@dataclass
class Target:
    """Something to call: ``call(**arguments)``, each argument by name.

    `base` has functions that make good arguments, `values` the table of each argument: values,
    or functions of the good one.  Errors may name an argument by its `aliases`.
    """

    name: str
    call: object
    base: dict
    values: dict = field(default_factory=dict)
    aliases: dict = field(default_factory=dict)
    check: object = None

    def cases(self):
        """Names of all values of all arguments."""
        for argument in self.base:
            for table in self.values.get(argument, (ANYTHING,)):
                yield from ((argument, kind) for kind in table)

    def arguments(self, changes):
        """Good arguments, some replaced."""
        arguments = {name: make() for name, make in self.base.items()}
        for name, kind in changes:
            for table in self.values.get(name, (ANYTHING,)):
                if kind in table:
                    make = table[kind]
                    alone = ANYTHING.get(kind) is make
                    arguments[name] = make() if alone else make(arguments[name])
        return arguments


#: Arguments that data have in common: an error of lengths may name either.
DATA = ("X", "y", "groups", "sample_weight")
DATA_ALIASES = dict.fromkeys(DATA, (*DATA, "group id"))
NUMBERS = (ARRAYS, ANYTHING)
DATA_VALUES = dict.fromkeys(DATA, NUMBERS) | {"groups": (IDS, ANYTHING)}
#: Tables of the arguments of functions by their names; all others may be ANYTHING.
VALUES = DATA_VALUES | dict.fromkeys(
    ("points", "distances", "A", "heads", "tails", "weights", "labels", "positions", "Z"), NUMBERS
)
#: No rounds without end.
FINITE = ({k: v for k, v in ANYTHING.items() if k not in ("10**9", "10**30", "2**63")},)
#: Parameters that make fits of the base call short.
SHORT = {"lam": 0.05, "n_init": 1, "random_state": 0, "graph": "complete"}


def short_parameters(cls, **given):
    """Parameters under which a class fits fast."""
    values = {k: v for k, v in SHORT.items() if k in inspect.signature(cls).parameters}
    if cls.__name__.startswith("FPFC"):
        values["max_iter"] = 60
    if given.get("hidden_layer_sizes"):
        values["max_iter"] = 3
    return {**values, **given}


def is_point_clusterer(cls):
    return cls.__name__ == "ConvexClustering"


def kind_of(cls):
    return "classifier" if "Classifier" in cls.__name__ else "regressor"


def estimators():
    """Public classes of estimators, and the parameters of some variants."""
    for name in skcfl.__all__:
        cls = getattr(skcfl, name)
        if not hasattr(cls, "fit"):
            continue
        yield cls, {}
        if "hidden_layer_sizes" in inspect.signature(cls).parameters:
            yield cls, {"hidden_layer_sizes": (2,)}


def options_inside(cls):
    """Options of the objects that a class takes, ``training__local_steps``, and their defaults."""
    inside = {}
    for name, kind in getattr(cls, "_option_classes", {}).items():
        defaults = kind().get_params(deep=False)
        used = cls._option_names.get(name, defaults)
        inside |= {f"{name}__{option}": defaults[option] for option in used}
    return inside


def defaults_of(function):
    return {n: p.default for n, p in inspect.signature(function).parameters.items()}


def fit_target(cls, given):
    """Fits: parameters, options of objects, rows, ids and weights."""
    X, y, groups = rows(kind_of(cls))
    # What is verbose prints.
    defaults = {n: v for n, v in defaults_of(cls).items() if n != "verbose"}
    inside = options_inside(cls)
    short = short_parameters(cls, **given)
    base = {n: short.get(n, default) for n, default in defaults.items()} | inside | {"X": X}
    if not is_point_clusterer(cls):
        base |= {"y": y, "groups": groups, "sample_weight": np.ones(len(y))}

    def call(**arguments):
        estimator = cls(**{n: arguments.pop(n) for n in defaults})
        for name, default in inside.items():
            value, owner = arguments.pop(name), name.partition("__")[0]
            # Where the object is malformed itself, it has no options.
            if value is not default and isinstance(vars(estimator)[owner], Options | None):
                estimator.set_params(**{name: value})
        before = dict(vars(estimator))
        try:
            estimator.fit(**arguments)
        except Exception:
            after = vars(estimator)
            assert after.keys() == before.keys(), "a failed fit left attributes"
            assert all(after[k] is before[k] for k in before), "a failed fit changed parameters"
            raise
        return estimator, arguments

    # More threads and more rounds than there can be are no matter of values.
    values = DATA_VALUES | {
        "n_jobs": ({k: ANYTHING[k] for k in ("'nonsense'", "0", "float('nan')")},)
    }
    values |= dict.fromkeys(("max_iter", "local_steps", "training__local_steps"), FINITE)
    aliases = DATA_ALIASES | {
        "group_col": ("group_col", "groups", "X"),
        "groups": (*DATA, "group id", "n_clusters", "n_splits", "nodes"),
        **{name: (name.partition("__")[2],) for name in inside},
    }
    return target(call, aliases, f"{cls.__name__}{given or ''}.fit", check_fit, values, **base)


def option_targets():
    """Objects of options, checked when an estimator is fitted."""
    X, y, groups = rows("regressor")

    def call(**options):
        search = skcfl.LamSearch(**options)
        short = {"graph": "complete", "penalty": "l2", "alpha": 0.01, "random_state": 0}
        model = skcfl.ConvexClusteredFLRegressor(search=search, **short)
        return model.fit(X, y, groups=groups).params_

    # A callable is the user's own.
    scoring = ({k: v for k, v in ANYTHING.items() if k not in ("int", "len")},)
    aliases = {"cv": ("cv", "n_splits", "scoring"), "criterion": ("criterion", "cv")}
    base = defaults_of(skcfl.LamSearch) | {"cv": 2, "lams": [0.05, 0.1]}
    yield target(call, aliases, "LamSearch", values={"scoring": scoring}, **base)


def check_fit(outcome):
    """Models are finite, labels are labels, predictions are finite."""
    estimator, arguments = outcome
    n = len(estimator.labels_)
    assert estimator.labels_.min() == 0 and estimator.labels_.max() == estimator.n_clusters_ - 1
    assert estimator.cluster_sizes_.sum() == n
    if hasattr(estimator, "objective_"):  # KFED has centres only
        assert np.isfinite(estimator.objective_), "objective_ is not finite"
    for name in ("params_", "cluster_params_", "coef_", "cluster_centers_", "dual_coef_"):
        if hasattr(estimator, name):
            assert np.isfinite(getattr(estimator, name)).all(), f"{name} is not finite"
    if hasattr(estimator, "groups_"):
        given = {} if estimator.group_col is not None else {"groups": arguments["groups"]}
        predicted = estimator.predict(arguments["X"], **given)
    else:
        predicted = estimator.predict(arguments["X"])
    if predicted.dtype.kind == "f":
        assert np.isfinite(predicted).all(), "predictions are not finite"


@functools.cache
def fitted(cls, network=False):
    """A fit without a search, which the methods of an estimator do not know of."""
    X, y, groups = rows(kind_of(cls))
    given = {"n_clusters": 2, "eps2": 0.3, "basis": "linear", "max_iter": 20}
    given |= {"hidden_layer_sizes": (2,), "max_iter": 3} if network else {}
    given = {n: v for n, v in given.items() if n in inspect.signature(cls).parameters}
    estimator = cls(**short_parameters(cls, **given))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(X) if is_point_clusterer(cls) else estimator.fit(X, y, groups=groups)


def method_targets(cls):
    """Methods of a fitted estimator."""
    X, y, groups = rows(kind_of(cls))
    if is_point_clusterer(cls):
        aliases, title = {"X": ("X",)}, f"{cls.__name__}.predict"
        yield target(lambda **a: fitted(cls).predict(**a), aliases, title, X=X)
        return
    data = {"X": X, "groups": groups}
    labelled = {"X": X, "y": y, "groups": groups}
    methods = {
        **dict.fromkeys(("predict", "predict_proba", "predict_log_proba"), data),
        "decision_function": data,
        "score": labelled | {"sample_weight": np.ones(len(y))},
        **dict.fromkeys(("assign", "cluster_losses"), labelled),
        "sample_labels": {"groups": groups},
        "predict_cluster": {"X": X, "label": 0},
    }
    for method, base in methods.items():
        if hasattr(cls(), method):
            yield target(
                lambda method=method, **a: getattr(fitted(cls), method)(**a),
                title=f"{cls.__name__}.{method}",
                # the logarithm of zero, and R^2 of targets that are equal but for rounding
                check=nothing if method in ("predict_log_proba", "score") else None,
                **base,
            )


def nothing(result):
    """No check: the numbers may be what they are."""


def target(call, aliases=None, title=None, check=None, values=VALUES, **base):
    """A call with good arguments, which are copied for every call."""
    return Target(
        title or call.__name__,
        call,
        {name: functools.partial(copy, value) for name, value in base.items()},
        values,
        DATA_ALIASES | (aliases or {}),
        check or check_numbers,
    )


def graph_targets():
    rng = np.random.RandomState(0)
    points = rng.normal(size=(6, 2))
    D = np.linalg.norm(points[:, None] - points, axis=2)
    A = (D < 1.0) * 1.0
    np.fill_diagonal(A, 0.0)
    X, _, groups = rows("regressor")
    for make in (graphs.complete_graph, graphs.chain_graph, graphs.star_graph):
        yield target(make, n_nodes=5, weight=1.0)
    yield target(graphs.from_adjacency, A=A)
    near = {"n_neighbors": 2, "scale": None}
    yield target(graphs.knn_graph, points=points, **near, connected=False)
    yield target(graphs.distance_graph, distances=D, **near)
    of_rows = {"X": DATA, "groups": DATA}
    yield target(graphs.kl_graph, of_rows, X=X, groups=groups, n_neighbors=2, k=1, scale=1.0)
    blocks = {"p_in": 0.5, "p_out": 0.1, "weight": 1.0, "random_state": 0}
    yield target(graphs.stochastic_block_model, sizes=[3, 4], **blocks)
    heads, tails = [0, 0, 0, 1, 1, 2], [1, 2, 3, 2, 3, 3]
    ends = {"heads": heads, "tails": tails, "weights": [1.0, 2.0, 1.0, 1.0, 1.0, 3.0]}
    yield target(graphs.Graph, dict.fromkeys(ends, tuple(ends)), n_nodes=4, **ends)
    chain = graphs.chain_graph(4)
    for method, argument, good in (
        ("difference", "x", np.ones((4, 2))),
        ("divergence", "u", np.ones((3, 2))),
        ("inside", "labels", np.array([0, 0, 1, 1])),
        ("renumbered", "numbers", np.array([1, 0, 3, 2])),
    ):
        call, about = getattr(chain, method), {"values": {argument: NUMBERS}, argument: good}
        yield target(call, title=f"Graph.{method}", check=nothing, **about)
    labels = {"labels": np.array([0, 0, 1, 1]), "n_clusters": 2}
    yield target(chain.between, {"n_clusters": tuple(labels)}, "Graph.between", **labels)


#: Arguments of the functions of skcfl.datasets under which they are short.
FEDERATIONS = dict(n_clients=6, n_clusters=2, n_features=3, n_samples=4, n_pool=20, n_test=5)
FEDERATIONS |= dict(clients_per_cluster=2, clients_per_rotation=2, angles=(0, 180))
FEDERATIONS |= dict(n_rotations=2, angle=90, random_state=0, n_swaps=1, n_unique=1)


def dataset_targets():
    rng = np.random.RandomState(0)
    known = FEDERATIONS | {"X": rng.uniform(size=(48, 4)), "y": np.arange(48) % 4}
    known["groups"] = np.arange(48) % 6
    aliases = {
        "X": ("X", "y", "image_shape"),
        "y": ("y", "X", "classes", "class"),
        "image_shape": ("image_shape", "X"),
        "groups": ("groups", "samples"),
    }
    for name in datasets.__all__:
        function = getattr(datasets, name)
        base = {n: known.get(n, default) for n, default in defaults_of(function).items()}
        if name == "make_ellipses":
            base["angles"] = None
        values = {"X": NUMBERS, "y": NUMBERS}
        yield target(function, aliases, name, check_federation, values, **base)


def check_federation(data):
    """Ids, labels and numbers of a federation."""
    if isinstance(data, (tuple, np.ndarray)) or "labels" not in data:
        return
    assert len(data.labels) == len(np.unique(data.groups))
    assert len(data.groups) == data.X.shape[0] == len(data.y)


def certificate_targets():
    X, y, groups = rows("regressor")
    est, points = fitted(skcfl.ConvexClusteredFLRegressor), fitted(skcfl.ConvexClustering)
    data = {"X": X, "y": y, "groups": groups, "sample_weight": np.ones(len(y))}
    for name in ("certify_partition", "duality_gap", "recovery_interval"):
        function = getattr(certificates, name)
        yield target(function, check=nothing, est=est, **data)
        yield target(function, title=f"{name} of points", check=nothing, est=points, X=X)
    labels = {"labels": np.array([0, 0, 0, 1, 1, 1])}
    gtv = fitted(skcfl.GTVRegressor)
    yield target(certificates.clustering_constants, check=nothing, est=gtv, **data, **labels)
    names = {"labels": ("labels", "A"), "A": ("A", "labels")}
    shared = dict(A=np.ones((4, 4)) - np.eye(4), labels=np.array([0, 0, 1, 1]), lam=1.0, alpha=1.0)
    yield target(certificates.well_connected, names, **shared, delta=0.1, beta=1.0)
    yield target(certificates.clustering_error_bound, names, check=nothing, **shared)


def selection_targets():
    X, y, groups = rows("regressor")
    est = skcfl.ConvexClusteredFLRegressor(lam=0.1, max_iter=100)
    rows_of = {"X": X, "y": y, "groups": groups}
    data = rows_of | {"sample_weight": np.ones(len(y))}
    yield target(model_selection.lam_max, est=est, **data)
    path = {"n_lams": 3, "lams": None, "lam_min_ratio": None}
    yield target(model_selection.lam_path, check=nothing, est=est, **data, **path)
    local = fitted(skcfl.LocalModelsRegressor)
    scores = model_selection.per_client_scores
    yield target(scores, check=nothing, estimator=local, **data, scoring=None)

    def folds(X, y, groups, **parameters):
        folds = model_selection.ClientKFold(**parameters)
        return [test for _, test in folds.split(X, y, groups)]

    aliases = {
        "group_col": ("group_col", "groups", "X"),
        "n_splits": ("n_splits", "groups"),
        "groups": (*DATA, "n_splits"),
    }
    options = defaults_of(model_selection.ClientKFold)
    options |= {"n_splits": 2, "shuffle": True, "random_state": 0}
    yield target(folds, aliases, "ClientKFold.split", **rows_of, **options)
    yield target(model_selection.grouped_scorer, scoring="r2", check=nothing)


def penalty_targets():
    names = {
        "lam": ("lam", "t", "xi"),
        "a": ("a", "t"),
        "xi": ("xi", "lam"),
        "t": ("t", "broadcast"),
    }
    Z = np.random.RandomState(0).normal(size=(2, 5))
    for cls in (penalties.L1, penalties.L2, penalties.SquaredL2, penalties.SCAD, penalties.MCP):

        def call(Z, t, cls=cls, **parameters):
            penalty = cls(**parameters)
            # Functions of arrays, as numpy's: of infinity they are what they are.
            with np.errstate(all="ignore"):
                return penalty.value(Z), penalty.prox(Z, t), penalty.project(Z, t)

        yield target(call, names, cls.__name__, nothing, **defaults_of(cls), Z=Z, t=0.1)


def model_targets():
    for cls in (LinearModel, MLP, Autoencoder, Location):

        def call(n_features, n_classes, cls=cls, **parameters):
            return cls(**parameters).bind(n_features, n_classes).n_params

        sizes = {"n_features": 3, "n_classes": 2}
        yield target(call, title=f"{cls.__name__}.bind", values={}, **defaults_of(cls), **sizes)


def solver_targets():
    from skcfl.federation.inprocess import open_rows
    from skcfl.fusion.admm import admm
    from skcfl.fusion.ama import ama
    from skcfl.fusion.mean_regularised import mean_regularised
    from skcfl.fusion.pdmm import pdmm
    from skcfl.fusion.primal_dual import primal_dual
    from skcfl.fusion.problem import FusionProblem

    X, y, groups = rows("regressor")
    codes = np.unique(groups, return_inverse=True)[1]

    def pool():
        model = LinearModel(alpha=0.01, standardize=False).bind(N_FEATURES)
        return open_rows(model, X, y, codes, N_CLIENTS, random_state=0)

    skip = {"problem", "state", "verbose", "rng", "contraction", "certify"}
    for function in (admm, ama, primal_dual, pdmm, mean_regularised):
        name = function.__name__
        parameters = {n: v for n, v in defaults_of(function).items() if n not in skip}
        squared = name == "mean_regularised"
        penalty = penalties.SquaredL2() if squared else penalties.L2()
        graph = graphs.complete_graph(N_CLIENTS) if squared else graphs.chain_graph(N_CLIENTS)

        def call(function=function, graph=graph, penalty=penalty, **a):
            return function(FusionProblem(pool(), graph, penalty), **a)[0].params

        yield target(call, title=name, values={}, **parameters | {"lam": 0.05})


def operator_targets():
    X, y, groups = rows("regressor")
    counts = dict.fromkeys(("max_iter", "n_iter"), FINITE)
    for cls in (CenteredClipping, GeometricMedian, Krum, TrimmedMean):

        def fit(cls=cls, **parameters):
            model = skcfl.FedAvgRegressor(aggregation=cls(**parameters), max_iter=3)
            return model.fit(X, y, groups=groups).params_

        yield target(fit, title=cls.__name__, values=counts, **cls().get_params())


def display_targets():
    import matplotlib.pyplot as plt

    X, y, groups = rows("regressor")
    data = {"X": X, "y": y, "groups": groups}
    fusion = fitted(skcfl.ConvexClusteredFLRegressor)
    rounds = skcfl.IFCARegressor(2, record=Record(models=True), n_init=1, random_state=0)
    rounds.fit(X, y, groups=groups)
    positions = np.random.RandomState(0).normal(size=(N_CLIENTS, 2))
    path = {**data, "n_lams": 3, "partition": None, "kind": "models"}
    for cls, estimator, base in (
        (inspection.ClusterPathDisplay, fusion, path),
        (inspection.ConvergenceDisplay, fusion, {"x": "round", "y": None, "name": None}),
        (inspection.EmpiricalGraphDisplay, fusion, {"positions": positions, "names": False}),
        (inspection.LossMatrixDisplay, rounds, data),
        (inspection.ClientSimilarityDisplay, rounds, {}),
        (inspection.RoundsDisplay, rounds, {**data, "curve": None, "name": None}),
    ):

        def call(draw=cls.from_estimator, **arguments):
            try:
                draw(**arguments)
            finally:
                plt.close("all")

        tables = {n: table for n, table in VALUES.items() if base.get(n) is not None}
        aliases, title = {"X": (*DATA, "curve")}, f"{cls.__name__}.from_estimator"
        base = {"estimator": estimator, **base, "ax": None}
        yield target(call, aliases, title, nothing, tables, **base)


@functools.cache
def targets():
    """Everything public."""
    found = []
    for cls, given in estimators():
        found.append(fit_target(cls, given))
        if not given:
            found.extend(method_targets(cls))
    families = (option_targets, graph_targets, dataset_targets, certificate_targets)
    families += (selection_targets, penalty_targets, model_targets, solver_targets)
    for family in (*families, operator_targets, display_targets):
        found.extend(family())
    return {target.name: target for target in found}


# -------------------------------------------------------------------------------- verdicts


def check_numbers(result):
    """All numbers of a result are finite."""
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        assert np.isfinite(result).all(), "the result is not finite"
    elif isinstance(result, float):
        assert np.isfinite(result), f"the result is {result}"
    elif isinstance(result, (tuple, list)):
        for part in result:
            check_numbers(part)
    elif isinstance(result, graphs.Graph) and not result.is_complete:
        check_numbers(result.weights)


def verdict(target, changes):
    """What is wrong with the outcome of a call; None if nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for category in QUIET:
                warnings.simplefilter("ignore", category)
            outcome = target.call(**target.arguments(changes))
            if target.check is not None:
                target.check(outcome)
    except ALLOWED as error:
        names = {a for name, _ in changes for a in target.aliases.get(name, (name,))}
        text = str(error)
        if not any(re.search(rf"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])", text) for name in names):
            return f"does not name {sorted(names)}: {type(error).__name__}: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
