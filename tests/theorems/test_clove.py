"""Lemmas and theorems of the CLoVE paper (Bhatia et al., 2025, Appendix A).

The lemmas are facts about numbers and run as property tests.  The theorems hold with high
probability in a regime of many rows: they run as statistical tests there.  The paper's squared
error has no factor 1/2, so its losses are twice ours and its steps half as long.
"""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from skcfl.calls.first_order import Losses
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.rounds.alternate import Options, alternate
from skcfl.rounds.loss_clusters import LossClusters, embed

sizes = {
    "d": st.integers(2, 12),
    "k": st.integers(2, 5),
    "sigma": st.floats(0.0, 0.3),
    "seed": st.integers(0, 2**31),
}


def unit(rng, k, d):
    theta = rng.standard_normal((k, d))
    return theta / np.linalg.norm(theta, axis=1, keepdims=True)


def orthonormal(rng, d):
    return np.linalg.qr(rng.standard_normal((d, d)))[0]


def mean_vectors(truth, models, sigma):
    """c_k, the means of the clusters' vectors of square root losses (section A.1)."""
    gap = np.linalg.norm(truth[:, None] - models[None], axis=2)
    return np.sqrt(gap**2 + sigma**2)


def stepped(rng, truth, length):
    """The models after a step of that length in any direction."""
    step = rng.standard_normal(truth.shape)
    return truth + length * step / np.linalg.norm(step, axis=1, keepdims=True)


def smallest(points):
    return min(np.linalg.norm(a - b) for i, a in enumerate(points) for b in points[:i])


# -------------------------------------------------------------------------------- lemmas


@given(**sizes)
def test_lemma_a1_orthonormal_models_separate_the_mean_vectors(d, k, sigma, seed):
    """||c_i - c_j|| >= Delta / sqrt(4 + sigma^2), the c of about 2 that the proof has."""
    rng = np.random.RandomState(seed)
    truth, models = unit(rng, k, d), orthonormal(rng, d)
    delta = smallest(truth)
    c = mean_vectors(truth, models, sigma)
    assert smallest(c) >= delta / np.sqrt(4 + sigma**2) * (1 - 1e-9)


@given(share=st.floats(0.0, 1.0), **sizes)
def test_lemma_a2_proximal_models_separate_the_mean_vectors(d, k, sigma, seed, share):
    """||c_i - c_j|| > Delta / 2 where each model is within Delta / 4 of its truth.

    The proof takes sigma <= Delta / 4, and has the constant sqrt(2) (3 - sqrt(2)) / 4 > 1 / 2.
    """
    rng = np.random.RandomState(seed)
    truth = unit(rng, k, d)
    delta = smallest(truth)
    assume(delta > 1e-6)
    sigma = min(sigma, delta / 4)
    c = mean_vectors(truth, stepped(rng, truth, share * delta / 4), sigma)
    assert smallest(c) >= np.sqrt(2) * (3 - np.sqrt(2)) / 4 * delta * (1 - 1e-9)
    assert smallest(c) > delta / 2


@given(**sizes, share=st.floats(0.0, 1.0))
def test_lemma_a3_proximal_models_are_shorter_than_two(d, k, sigma, seed, share):
    rng = np.random.RandomState(seed)
    truth = unit(rng, k, d)
    models = stepped(rng, truth, share * smallest(truth) / 4)
    assert (np.linalg.norm(models, axis=1) < 2.0).all()


@given(
    n_models=st.integers(2, 6),
    seed=st.integers(0, 2**31),
    delta=st.floats(0.0, 5.0),
    scale=st.floats(0.1, 100.0),
)
def test_lemma_a17_what_ifca_needs_separates_the_vectors(n_models, seed, delta, scale):
    """Different best models, each by a gap of delta: vectors at least sqrt(2) delta apart."""
    rng = np.random.RandomState(seed)
    losses = scale * rng.uniform(0.0, 1.0, (2, n_models))
    best = rng.permutation(n_models)[:2]
    for row, k in zip(losses, best, strict=True):
        row += delta
        row[k] = row[np.arange(n_models) != k].min() - delta
    gaps = [np.sort(row)[1] - row.min() for row in losses]
    assert min(gaps) >= delta * (1 - 1e-9) - 1e-12 * scale
    assert np.linalg.norm(losses[0] - losses[1]) >= np.sqrt(2) * min(gaps) * (1 - 1e-9)


def test_lemma_a17_is_sharp():
    """Two models, gaps of delta both ways: the distance is sqrt(2) delta."""
    losses = np.array([[1.0, 1.5], [1.5, 1.0]])
    assert np.linalg.norm(losses[0] - losses[1]) == np.sqrt(2) * 0.5


# ------------------------------------------------------------------------------ theorems

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


def test_theorem_4_1_needs_enough_rows():
    """Out of the regime it fails: with few rows per client the vectors are noise."""
    found = 0
    for seed in range(10):
        rng, truth = draw(seed)
        pool = fresh_pool(rng, truth, n_rows=3, sigma=0.0)
        found += recovered(embed(pool.ask(Losses, orthonormal(rng, D)), "sqrt"), seed)
    assert found <= 1


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
