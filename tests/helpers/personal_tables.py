"""Small tables that personal methods are fitted to, one with classes."""

import numpy as np
from sklearn.base import is_classifier

from skcfl.datasets import make_clustered_classification, make_clustered_regression

DATA = make_clustered_regression(8, 2, 3, n_samples=(8, 20), random_state=0)
CLASSES = make_clustered_classification(8, 2, 3, n_samples=20, random_state=0)
#: Clients that do not differ, and that do, beyond what their rows leave open.
ALIKE = make_clustered_regression(10, 1, 3, n_samples=8, noise=1.0, random_state=0)
APART = make_clustered_regression(6, 3, 3, n_samples=60, noise=0.1, random_state=0)
#: The clients of the first two, and those of the rows with classes.
IDS, CODES = np.unique(CLASSES.groups, return_inverse=True)


def fit(model, data=None):
    if data is None:
        data = CLASSES if is_classifier(model) else DATA
    return model.fit(data.X, data.y, groups=data.groups)


def without(model, i):
    """The model fitted to all rows with classes but those of a client, which come with it."""
    mine = i == CODES
    model.fit(CLASSES.X[~mine], CLASSES.y[~mine], groups=CLASSES.groups[~mine])
    return model, (CLASSES.X[mine], CLASSES.y[mine], CLASSES.groups[mine])
