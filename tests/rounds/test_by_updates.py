"""Rules that cluster clients by what they have trained."""

import numpy as np

from skcfl import FeSEM, FeSEMRegressor, Record, Training
from skcfl.datasets import make_clustered_regression
from skcfl.models import LinearModel

DATA = make_clustered_regression(12, 3, 4, n_samples=25, random_state=0)
IDS = np.unique(DATA.groups)


# ---------------------------------------------------------------------------- FeSEM

TRAINING = Training(step_size=0.02, local_steps=7, polish=False)
STEPS = {"training": TRAINING, "tol": 0}


def simple_fesem(theta, rounds):
    """The paper's two steps in plain code: gradient descent, nearest model, weighted means."""
    alpha, labels = 0.01, None
    model = LinearModel(alpha=alpha, standardize=False)
    X = np.column_stack([DATA.X, np.ones(len(DATA.X))])
    decay = model.bind(4).decay
    for _ in range(rounds):
        w, sizes = [], []
        for i, name in enumerate(IDS):
            mine = DATA.groups == name
            v = theta.mean(axis=0) if labels is None else theta[labels[i]]
            for _ in range(TRAINING.local_steps):
                r = X[mine] @ v - DATA.y[mine]
                v = v - TRAINING.step_size * (X[mine].T @ r / mine.sum() + decay * v)
            w.append(v)
            sizes.append(mine.sum())
        w, sizes = np.array(w), np.array(sizes, dtype=float)
        labels = ((w[:, None] - theta) ** 2).sum(axis=2).argmin(axis=1)
        for k in np.unique(labels):
            mine = labels == k
            theta[k] = np.average(w[mine], axis=0, weights=sizes[mine])
    return theta, labels


def test_fesem_is_the_papers_two_steps():
    theta = np.random.RandomState(0).standard_normal((3, 5))
    model = FeSEM(
        LinearModel(alpha=0.01, standardize=False),
        3,
        max_iter=6,
        init=theta,
        empty_cluster="keep",
        record=Record(models=True),
        **STEPS,
    ).fit(DATA.X, DATA.y, groups=DATA.groups)
    wanted, labels = simple_fesem(theta.copy(), 6)
    np.testing.assert_array_equal(model.round_labels_[-1], labels)
    np.testing.assert_allclose(model.round_params_[-1], wanted, rtol=1e-10)
    # A round is a model down and a model up for each client, and its objective.
    assert (model.history_["floats_down"][1:] == 12 * 5).all()
    assert (model.history_["floats_up"][1:] == 12 * 6).all()


def test_fesem_as_published_stays_in_one_cluster():
    """Clustered before they have trained, all clients are nearest to one model."""
    options = {"n_clusters": 3, "record": Record(DATA.labels), "random_state": 0, "max_iter": 5}
    options |= STEPS | {"standardize": False, "empty_cluster": "keep"}
    trap = FeSEMRegressor(init="random", **options).fit(DATA.X, DATA.y, groups=DATA.groups)
    assert trap.history_["n_clusters"][0] == 1 and trap.history_["ari"][0] == 0.0
    mended = FeSEMRegressor(**options).fit(DATA.X, DATA.y, groups=DATA.groups)
    assert mended.history_["ari"][0] == 1.0
