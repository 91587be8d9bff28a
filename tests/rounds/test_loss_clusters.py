"""CLoVE's choice of clusters: embeddings, k-means, matching, and what may go wrong with losses."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import DBSCAN, AgglomerativeClustering, KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from skcfl.numerics.kmeans import kmeans, lloyd
from skcfl.rounds.loss_clusters import EMBEDDINGS, LossClusters, embed, finite_losses, match

TRUTH = np.repeat([0, 1, 2], 6)


def separated(seed=0, n_models=3, noise=0.05):
    """Losses under which each cluster has a model of its own."""
    rng = np.random.RandomState(seed)
    base = rng.uniform(1.0, 3.0, (3, n_models))
    base[np.arange(3), np.arange(3) % n_models] = 0.2
    return base[TRUTH] * np.exp(noise * rng.standard_normal((len(TRUTH), n_models)))


def choose(losses, seed=0, old=None, members=None, **options):
    n, K = losses.shape
    rule = LossClusters(n, K, np.random.RandomState(seed), **options)
    old = np.full(n, -1) if old is None else np.asarray(old)
    members = np.arange(n) if members is None else members
    return rule.cluster(losses[members], members, old)


def tables(elements):
    return hnp.arrays(float, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=elements)


losses_of_any_size = tables(st.floats(0, 1e12))
seeds = st.integers(0, 10**6)


# ----------------------------------------------------------------------------- embedding


@pytest.mark.parametrize("embedding", EMBEDDINGS)
@given(losses=losses_of_any_size)
def test_embeddings_are_finite(embedding, losses):
    vectors = embed(losses, embedding)
    assert vectors.shape == losses.shape
    assert np.isfinite(vectors).all()


@given(losses=losses_of_any_size, seed=seeds)
def test_log_vectors_know_ratios_only(losses, seed):
    """A client's losses times a number, or a model's losses times a number, are the same."""
    losses = losses + 1.0
    rng = np.random.RandomState(seed)
    vectors = embed(losses, "log")
    scaled = embed(losses * rng.uniform(0.1, 10, (len(losses), 1)), "log")
    assert_allclose(scaled, vectors, atol=1e-9)
    other = embed(losses * rng.uniform(0.1, 10, (1, losses.shape[1])), "log")
    assert_allclose(other - other[0], vectors - vectors[0], atol=1e-9)


@pytest.mark.parametrize("embedding", ["log", "sqrt"])
@given(losses=tables(st.integers(0, 50)), seed=seeds)
def test_negative_losses_count_by_their_differences(embedding, losses, seed):
    """What is added to all losses of a client, as of counts, is no matter; nor is their unit."""
    rng = np.random.RandomState(seed)
    below = losses - losses.max() - 1.0
    vectors = embed(below, embedding)
    own = rng.uniform(0.0, 1.0, (len(losses), 1))
    assert_allclose(embed(below - own, embedding), vectors, atol=1e-5)
    if embedding == "log":
        assert_allclose(embed(7.0 * below, embedding), vectors, atol=1e-9)
    ranks = np.diff(np.take_along_axis(vectors, below.argsort(axis=1), axis=1), axis=1)
    assert (ranks >= -1e-9).all()


def test_clusters_of_counts():
    """Whose losses are negative, and under a wrong model very large."""
    rng = np.random.RandomState(0)
    losses = -rng.uniform(5.0, 1000.0, (len(TRUTH), 1)) * np.ones(3)
    for k in range(3):
        away = TRUTH != k
        losses[away, k] += np.exp(rng.uniform(4.0, 6.0, away.sum()))
    assert adjusted_rand_score(TRUTH, choose(losses)) == 1.0


@given(losses=losses_of_any_size)
def test_centred_vectors_forget_a_clients_own_noise(losses):
    own = np.arange(len(losses))[:, None] * 1e3
    assert_allclose(embed(losses + own, "centered"), embed(losses, "centered"), atol=1e-3)


def test_square_roots_and_raw_losses_are_what_they_say():
    losses = np.array([[1.0, 4.0], [9.0, 0.0]])
    assert_array_equal(embed(losses, "sqrt"), [[1, 2], [3, 0]])
    assert_array_equal(embed(losses, "raw"), losses)


def test_a_diverged_model_is_much_worse_than_any_other():
    """Ten times the largest loss, which all its clients have."""
    losses = np.array([[1.0, 3.0, -np.inf], [2.0, np.nan, 1e300], [np.inf, 5.0, 4.0]])
    assert_array_equal(finite_losses(losses), [[1, 3, 40], [2, 50, 40], [20, 5, 4]])


@pytest.mark.parametrize("embedding", ["log", "centered", "sqrt", "raw"])
def test_a_diverged_model_tells_nobody_apart(embedding):
    losses = separated()
    losses[:, 2] = np.nan
    losses[3, 2] = np.inf
    assert adjusted_rand_score(TRUTH, choose(losses, embedding=embedding)) > 0.9


def test_log_vectors_survive_what_ruins_raw_ones():
    """One model far off, with losses that differ by chance, drowns the others' differences."""
    losses = separated(n_models=4)
    losses[:, 3] = 1e6 * np.random.RandomState(1).uniform(0.5, 2.0, len(TRUTH))
    found = {}
    for embedding in ("log", "raw"):
        vectors = embed(losses, embedding)
        labels = KMeans(3, n_init=10, random_state=0).fit_predict(vectors)
        found[embedding] = adjusted_rand_score(TRUTH, labels)
    assert found["log"] == 1.0 and found["raw"] < 0.5
    assert LossClusters(len(TRUTH), 4, np.random.RandomState(1)).embedding == "log"


# ------------------------------------------------------------------------------ matching


@given(cost=hnp.arrays(float, st.tuples(st.just(4), st.just(4)), elements=st.floats(0, 100)))
def test_matching_is_the_cheapest_of_all(cost):
    model = match(cost)
    assert sorted(model) == [0, 1, 2, 3]
    best = min(sum(cost[np.arange(4), list(p)]) for p in itertools.permutations(range(4)))
    assert cost[np.arange(4), model].sum() == pytest.approx(best)


@given(seed=seeds, groups=st.integers(1, 6), models=st.integers(1, 6))
def test_no_model_is_given_twice(seed, groups, models):
    model = match(np.random.RandomState(seed).uniform(size=(groups, models)))
    given_out = model[model >= 0]
    assert len(set(given_out)) == len(given_out) == min(groups, models)


def test_the_sum_decides_not_the_mean():
    """Nine clients lose a little by the wrong model, one gains more: the nine count."""
    losses = np.array([[1.0, 1.2]] * 9 + [[5.0, 6.0]])
    member = np.array([[1.0] * 9 + [0], [0] * 9 + [1.0]])
    total = member @ losses
    assert_array_equal(match(total), [0, 1])
    assert_array_equal(match(total / member.sum(axis=1)[:, None]), [1, 0])
    assert_array_equal(choose(losses, embedding="raw"), [0] * 9 + [1])


@given(seed=seeds)
def test_clusters_get_the_models_that_fit_them(seed):
    """Losses decide, also where the groups had other models in the round before."""
    rng = np.random.RandomState(seed)
    order = rng.permutation(3)
    labels = choose(separated(seed)[:, order], seed=seed, old=(TRUTH + 1) % 3)
    # Model order.index(k) is that of cluster k.
    assert_array_equal(labels, np.argsort(order)[TRUTH])


@given(seed=seeds)
def test_clients_in_another_order_get_the_same_partition(seed):
    losses = separated(seed)
    order = np.random.RandomState(seed).permutation(len(TRUTH))
    assert_array_equal(choose(losses)[order], choose(losses[order]))


# ------------------------------------------------------------------------------ clusterers


@pytest.mark.parametrize(
    "clusterer",
    [
        AgglomerativeClustering(),
        KMeans(n_init=3),
        GaussianMixture(reg_covar=1e-3),
        DBSCAN(eps=0.8, min_samples=3),
        DBSCAN(eps=1e-9, min_samples=3),
        DBSCAN(eps=1e-9, min_samples=1),
    ],
    ids=str,
)
def test_any_clusterer(clusterer):
    """Noise, here of all, and surplus groups, here of one each, take the model of least loss."""
    before = str(clusterer.get_params())
    assert_array_equal(choose(separated(), clusterer=clusterer), TRUTH)
    assert str(clusterer.get_params()) == before


class Wrong(KMeans):
    def fit_predict(self, X, y=None, sample_weight=None):
        return np.zeros(2, dtype=int)


def test_a_clusterer_that_labels_others_is_refused():
    with pytest.raises(ValueError, match="clusterer must label each of the 18 loss vectors"):
        choose(separated(), clusterer=Wrong())


# ------------------------------------------------------------------------- degenerate cases


@pytest.mark.parametrize("embedding", EMBEDDINGS)
def test_vectors_that_are_all_the_same_are_split_by_chance(embedding):
    """Once centred those of equal models, too: their rounding is no signal."""
    tables = [np.full((12, 3), 0.7)]
    if embedding in ("log", "centered"):
        tables.append(np.tile(np.random.RandomState(0).uniform(1, 2, (12, 1)), 3))
    for losses in tables:
        assert_array_equal(np.bincount(choose(losses, embedding=embedding)), [4, 4, 4])


def test_fewer_different_vectors_than_models():
    losses = np.repeat([[1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 2.0, 3.0]], 5, axis=0)
    labels = choose(losses)
    assert_array_equal(labels, [0] * 5 + [1] * 5)


def test_fewer_clients_heard_than_models():
    rule = LossClusters(6, 3, np.random.RandomState(0))
    losses = np.array([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])
    assert_array_equal(rule.cluster(losses, np.array([4, 1]), -np.ones(6)), [0, 1])
    assert_array_equal(rule.age, [-1, 0, -1, -1, 0, -1])
    rule.cluster(losses[:1], np.array([0]), -np.ones(6))
    assert_array_equal(rule.age, [0, 1, -1, -1, 1, -1])
    assert rule.report() == {"stale": 2}


def test_calm_rounds_do_not_depend_on_the_random_state():
    """Once the partition has held, k-means starts from it and draws nothing."""
    losses = separated()
    rng = np.random.RandomState(0)
    rule = LossClusters(len(TRUTH), 3, rng)
    old, everyone = np.full(len(TRUTH), -1), np.arange(len(TRUTH))
    for _ in range(5):
        old = rule.cluster(losses, everyone, old)
    state = rng.get_state()[1].copy(), rng.get_state()[2]
    assert_array_equal(rule.cluster(losses, everyone, old), TRUTH)
    assert_array_equal(rng.get_state()[1], state[0])
    assert rng.get_state()[2] == state[1]
    # Losses that say otherwise are followed all the same, and the last choice starts anew.
    swapped = np.roll(losses, 6, axis=0)
    assert_array_equal(rule.cluster(swapped, everyone, old), np.roll(TRUTH, 6))
    rule.cluster(losses, everyone, old, final=True)
    assert rng.get_state()[2] != state[1]


@pytest.mark.parametrize(("n", "K"), [(60, 12), (3000, 4)])
def test_kmeans_is_as_good_as_that_of_scikit_learn(n, K):
    rng = np.random.RandomState(n)
    vectors = rng.normal(size=(n, K)) + 3 * rng.normal(size=(K, K))[rng.randint(K, size=n)]
    labels, inertia = kmeans(vectors, K, rng)
    centres = np.array([vectors[labels == k].mean(axis=0) for k in range(K)])
    assert_allclose(((vectors - centres[labels]) ** 2).sum(), inertia, rtol=1e-9)
    reference = KMeans(K, n_init=10, random_state=0).fit(vectors)
    assert inertia <= 1.05 * reference.inertia_
    # A fixed point.
    assert lloyd(vectors, centres[None])[1] == pytest.approx(inertia)


def test_lloyd_fills_empty_clusters():
    """With the vector that is served worst."""
    vectors = 10.0 + np.repeat([0.0, 1.0, 4.0], [10, 10, 1])[:, None]
    labels, inertia = lloyd(vectors, np.array([[[10.0], [100.0]]]))
    assert_array_equal(labels == labels[-1], np.arange(21) == 20)
    assert inertia == pytest.approx(5.0)
