"""Theorems of the CLoVE paper (Bhatia et al., 2025, Appendix A).

They hold with high probability in a regime of many rows, and run as statistical tests there.  The
paper's squared error has no factor 1/2, so its losses are twice ours and its steps half as long.
"""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from skcfl.calls.first_order import Losses
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.rounds.alternate import Options, alternate
from skcfl.rounds.loss_clusters import LossClusters, embed


def unit(rng, k, d):
    theta = rng.standard_normal((k, d))
    return theta / np.linalg.norm(theta, axis=1, keepdims=True)


def orthonormal(rng, d):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def stepped(rng, truth, length):
    """The models after a step of that length in any direction."""
    step = rng.standard_normal(truth.shape)
    return truth + length * step / np.linalg.norm(step, axis=1, keepdims=True)


def smallest(points):
    return min(np.linalg.norm(a - b) for i, a in enumerate(points) for b in points[:i])


# The regime: unit vectors a distance of order 1 apart, noise far below, n M >> d K^4.
K, D, PER_CLUSTER, N_ROWS, SIGMA = 4, 10, 10, 400, 0.05
CLUSTERS = np.repeat(np.arange(K), PER_CLUSTER)


def draw(seed):
    """Parameters of the clusters, at least .8 apart, and what draws fresh rows."""
    rng = np.random.RandomState(seed)
    truth = unit(rng, K, D)
    while smallest(truth) < 0.8:
        truth = unit(rng, K, D)
    return rng, truth


def fresh_pool(rng, truth, n_rows=N_ROWS, sigma=SIGMA):
    codes = np.repeat(np.arange(len(CLUSTERS)), n_rows)
    X = rng.standard_normal((len(codes), D))
    y = np.einsum("rd,rd->r", X, truth[CLUSTERS[codes]])
    y += sigma * rng.standard_normal(len(codes))
    model = LinearModel(alpha=0.0, fit_intercept=False).bind(D)
    return open_rows(model, X, y, codes, len(CLUSTERS))


def recovered(vectors, seed):
    groups = KMeans(K, n_init=10, random_state=seed).fit_predict(vectors)
    return adjusted_rand_score(CLUSTERS, groups) == 1.0


def test_theorem_4_1_square_root_vectors_are_recovered_in_one_shot():
    """By k-means, for orthonormal and for proximal models alike, on all draws."""
    for seed in range(4):
        rng, truth = draw(seed)
        pool = fresh_pool(rng, truth)
        assert recovered(embed(2 * pool.ask(Losses, orthonormal(rng, D)), "sqrt"), seed)
        models = stepped(rng, truth, smallest(truth) / 4)
        assert recovered(embed(2 * pool.ask(Losses, models), "sqrt"), seed)


def test_theorem_4_2_errors_fall_geometrically():
    """From K orthonormal models, fresh rows in every round, step (1 - Delta / 12) / 2.

    Corollary A.14: a round multiplies the error by Delta / 12, up to what fresh rows deviate from
    their covariance and the noise; a constant c_1 = 3 and a floor of a few sigma sqrt(d / m n)
    hold on all draws.
    """
    floor = 6 * SIGMA * np.sqrt(D / (PER_CLUSTER * N_ROWS))
    for seed in range(2):
        rng, truth = draw(seed)
        delta = smallest(truth)
        theta, matched = orthonormal(rng, D)[:K], None
        steps = {"max_iter": 1, "step_size": 1 - delta / 12, "tol": 0, "polish": False}
        options = Options(empty_cluster="keep", keep_rounds=True, **steps)
        for t in range(1, 7):
            rule = LossClusters(len(CLUSTERS), K, rng, embedding="sqrt")
            result = alternate(fresh_pool(rng, truth), theta, options, rng, rule=rule)
            labels = result.extra["round_labels"][0]
            # Theorem 4.1 in every round, and the matching keeps the models' clusters.
            assert adjusted_rand_score(CLUSTERS, labels) == 1.0
            of_cluster = labels[::PER_CLUSTER]
            if matched is not None:
                np.testing.assert_array_equal(of_cluster, matched)
            matched, theta = of_cluster, result.cluster_params
            error = np.linalg.norm(theta[of_cluster] - truth, axis=1)
            assert (error <= delta / 3.0**t + floor).all()
