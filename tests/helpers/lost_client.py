"""Eight clients, one of whom is lost, and fits without it."""

import numpy as np
from grouped import grouped
from private_clients import where

import skcfl
from skcfl.datasets import make_clustered_classification, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation

REGRESSION = make_clustered_regression(8, 2, 3, n_samples=20, random_state=0)
CLASSES = make_clustered_classification(8, 2, 3, n_samples=20, random_state=0)
IDS = np.unique(REGRESSION.groups)
GONE = IDS[3]
KEPT = IDS != GONE
OTHERS = REGRESSION.groups != GONE


def make(name, **options):
    """A method with those of the options that it has."""
    cls = getattr(skcfl, name)
    # No basis is chosen where clients may be lost.
    options = grouped(cls, **{"random_state": 0, "basis": "linear", **options})
    known = cls().get_params()
    return cls(**{key: value for key, value in options.items() if key in known})


def rows_of(name="Regressor", factor=1.0):
    """Rows in which the client that is lost may have other units than the others."""
    data = CLASSES if name.endswith("Classifier") else REGRESSION
    X = data.X.copy()
    X[~OTHERS] *= factor
    return X, data.y, data.groups


def fit_without(model, name="Regressor"):
    """The fit to the rows of the others."""
    X, y, groups = where(rows_of(name), OTHERS)
    return model.fit(X, y, groups=groups)


def federation(rows=None, dead=(GONE,), options=None, **faults):
    """Clients one of whom is dead."""
    rows = rows_of() if rows is None else rows
    return InProcessFederation(*rows, faults=Faults(dead=dead, **faults), **(options or {}))
