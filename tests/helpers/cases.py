"""One table of estimators on small data, which the tests of every axis share."""

import functools
import inspect
from dataclasses import dataclass, field

import numpy as np
from grouped import grouped
from numpy.testing import assert_allclose, assert_array_equal
from trials import one_a_method

import skcfl
from skcfl import LamSearch
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import InProcessFederation

DATA = make_clustered_regression(9, 3, 4, n_samples=12, random_state=0)
CLASSES = make_clustered_classification(9, 3, 4, n_samples=16, random_state=0)
#: Fewer clients, for what is tried of every estimator.
SMALL = {
    "Regressor": make_clustered_regression(6, 2, 3, n_samples=12, random_state=0),
    "Classifier": make_clustered_classification(6, 2, 3, n_samples=16, random_state=0),
}
EVERYDAY = [name for name in skcfl.__all__ if name.endswith(("Classifier", "Regressor"))]


def make(name, max_iter=30, **options):
    """The method, given what it would search for."""
    cls = getattr(skcfl, name)
    searched = {"n_clusters": 3, "lam": 0.1, "personal_steps": 3}
    given = {**searched, "random_state": 0, "max_iter": max_iter, **options}
    if name == "CFLClassifier":
        given.setdefault("eps2", 0.3)  # its twin searches
    if name == "PartialPoolingClassifier":
        given.setdefault("basis", "linear")  # its twin chooses
    if name.startswith("Oracle"):
        labels = zip(np.unique(CLASSES.groups), CLASSES.labels, strict=True)
        given.setdefault("labels", dict(labels))
    known = inspect.signature(cls).parameters
    given = grouped(cls, **given)
    return cls(**{key: value for key, value in given.items() if key in known})


@dataclass(frozen=True)
class Case:
    """An estimator on the table's data: what it is given, and what its fits promise."""

    name: str
    options: dict = field(default_factory=dict)

    def __str__(self):
        return "-".join(
            [self.name, *(key for key in self.options if key in ("lam", "n_clusters"))]
        )

    @property
    def data(self):
        return SMALL["Classifier" if self.name.endswith("Classifier") else "Regressor"]

    @property
    def rows(self):
        return self.data.X, self.data.y, self.data.groups

    def make(self, **options):
        if self.name.startswith("Oracle"):
            labels = zip(np.unique(self.data.groups), self.data.labels, strict=True)
            options.setdefault("labels", dict(labels))
        return make(self.name, **{"n_clusters": 2, **self.options, **options})

    def fit(self, X, y, groups, weights=None, **options):
        return self.make(**options).fit(X, y, groups=groups, sample_weight=weights)

    def federation(self, X=None, y=None, groups=None, **settings):
        rows = self.rows if X is None else (X, y, groups)
        return InProcessFederation(*rows, **settings)


@functools.cache
def fit_of(name):
    (case,) = (case for case in CASES if str(case) == name)
    return case.fit(*case.rows)


def fitted(case):
    """The fit to all rows, which no test may change; made once."""
    return fit_of(str(case))


#: Searches for K and lam, one method of each kind; alpha is searched by the same code as lam,
#: CLoVE's K by that of IFCA (tests/search/test_n_clusters.py), and FPFC's lam by that of convex
#: fusion (tests/estimators/test_lam_choice.py).
SEARCHING = [
    Case("IFCARegressor", {"n_clusters": "auto", "n_init": 2}),
    Case("OneShotRegressor", {"n_clusters": "auto"}),
    Case(
        "ConvexClusteredFLRegressor",
        {"lam": "auto", "alpha": 0.01, "search": LamSearch(cv=2, n_lams=3)},
    ),
    Case("DittoRegressor", {"lam": "auto"}),
]
CASES = [Case(name) for name in EVERYDAY] + SEARCHING
#: Twins differ in the loss, which every loss's calls are tested for: one class of each method in
#: turn, and both where searches, solvers and posteriors depend on it.
BOTH = ("CFLRegressor", "GTVClassifier", "PartialPoolingRegressor")
BY_METHOD = [Case(name) for name in dict.fromkeys([*one_a_method(EVERYDAY), *BOTH])] + SEARCHING


def predicted(model, X, groups):
    output = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    return getattr(model, output)(X, groups=groups)


def compare(found, wanted, rtol=1e-10):
    assert_array_equal(found.groups_, wanted.groups_)
    assert_array_equal(found.labels_, wanted.labels_)
    scale = np.abs(wanted.params_).max()
    assert_allclose(found.params_, wanted.params_, rtol=rtol, atol=rtol * scale)


def booked(model):
    return model.calls_, model.floats_up_, model.floats_down_
