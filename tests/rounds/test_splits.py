"""CFL: clusters are split when their clients' updates point apart."""

import tracemalloc

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    CFLClassifier,
    CFLRegressor,
    FedAvgRegressor,
    LocalModelsRegressor,
    Record,
    Training,
)
from skcfl.datasets import corrupt, make_clustered_classification, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation
from skcfl.rounds.splits import bipartition

DATA = make_clustered_regression(16, 4, 5, n_samples=(40, 60), random_state=0)
IDS = np.unique(DATA.groups)


def opposed(n, share=0.5, seed=0):
    """Clients with the slopes 1 and -1 on the same features, mean gradient zero at share 1/2."""
    x = np.random.RandomState(seed).standard_normal((20, 2))
    sign = np.where(np.arange(n) < share * n, 1.0, -1.0)
    return np.tile(x, (n, 1)), np.outer(sign, x[:, 0]).ravel(), np.repeat(np.arange(n), 20)


def test_two_clients_with_opposed_gradients():
    g = np.random.RandomState(0).standard_normal(6)
    side, similarity = bipartition(np.array([g, -2 * g]))
    assert side.tolist() == [0, 1] and similarity == pytest.approx(-1.0)
    # Complete linkage: the largest cosine across is as small as can be.
    a = np.array([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.1], [-1.0, -0.1], [0.9, 0.0]])
    side, similarity = bipartition(a)
    assert side.tolist() == [0, 0, 1, 1, 0] and similarity < -0.9


def test_a_split_holds_two_matrices_of_its_clients_at_most():
    n = 600
    updates = np.random.RandomState(0).standard_normal((n, 3))
    tracemalloc.start()
    bipartition(updates)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * 8 * n**2


def test_opposed_clients_part_in_the_first_round():
    X, y, groups = opposed(6)
    cfl = CFLRegressor(standardize=False, fit_intercept=False).fit(X, y, groups=groups)
    assert cfl.labels_.tolist() == [0, 0, 0, 1, 1, 1]
    root = cfl.tree_[0]
    assert root["round"] == 1 and root["children"] == (1, 2)
    assert root["mean_norm"] < 1e-12 and root["max_norm"] == pytest.approx(1.0)
    assert root["similarity"] == pytest.approx(-1.0)
    np.testing.assert_allclose(cfl.cluster_coef_[:, 0], [1, -1], atol=0.02)


def test_what_is_not_split():
    """Two clients, clients that agree, and a largest cosine that the gamma test does not bear."""
    X, y, groups = opposed(2)
    plain = {"eps2": 0.27, "standardize": False, "fit_intercept": False}
    assert CFLRegressor(**plain).fit(X, y, groups=groups).n_clusters_ == 1
    X, y, groups = opposed(6, share=1.0)
    assert CFLRegressor(**plain).fit(X, y, groups=groups).n_clusters_ == 1
    X, y, groups = opposed(6)
    assert CFLRegressor(**plain | {"eps2": 1.1}).fit(X, y, groups=groups).n_clusters_ == 1
    assert CFLRegressor(gamma_max=0.99, **plain).fit(X, y, groups=groups).n_clusters_ == 2
    assert CFLRegressor(gamma_max=1.0, **plain).fit(X, y, groups=groups).n_clusters_ == 1
    late = CFLRegressor(min_round=7, **plain).fit(X, y, groups=groups)
    assert late.tree_[0]["round"] == 8


WAYS = [("gradient", 1e4), ("model", 1.0), ("gradient", 1.0), ("model", 1e4)]


@pytest.mark.parametrize(("averaging", "unit"), some(WAYS, 2))
def test_clusters_come_out_whatever_the_units(averaging, unit):
    cfl = CFLRegressor(
        training=Training(averaging=averaging), record=Record(true_labels=DATA.labels)
    )
    cfl.fit(DATA.X, unit * DATA.y, groups=DATA.groups)
    assert adjusted_rand_score(DATA.labels, cfl.labels_) == 1.0
    assert cfl.history_["ari"][0] < 1.0 == cfl.history_["ari"][-1]
    leaves = [node["clients"] for node in cfl.tree_ if not node["children"]]
    assert sorted(np.concatenate(leaves)) == list(range(16))
    assert {tuple(leaf) for leaf in leaves} == {
        tuple(np.flatnonzero(cfl.labels_ == k)) for k in range(4)
    }
    for i, node in enumerate(cfl.tree_):
        assert all(cfl.tree_[child]["parent"] == i for child in node["children"])
    # The models are each cluster's pooled fit.
    rows = np.isin(DATA.groups, IDS[cfl.labels_ == 2])
    pooled = FedAvgRegressor(alpha=cfl.alpha_, standardize=False)
    pooled.fit(DATA.X[rows], unit * DATA.y[rows], groups=DATA.groups[rows])
    np.testing.assert_allclose(cfl.cluster_coef_[2], pooled.coef_[0], atol=0.02 * unit)


NETWORK = {"hidden_layer_sizes": (16,), "eps1": 0.2, "eps2": 0.93}


#: Draws on which clusters were not found where one of the rules was left out.
FALSE = [
    # Updates about the operator's model, not about their mean, point anywhere.
    (1, "sign_flip", "geometric_median", {}),
    # On all rows the false are split off first, and on those of folds the others.
    (5, "noise", "geometric_median", {}),
    (0, "sign_flip", "geometric_median", NETWORK),
    # The operator's rounds leave clients out, or go in circles.
    (2, None, "geometric_median", {}),
    (5, "sign_flip", "median", {}),
    # False clients gain more by a model each than the others lose.
    (5, "scale_X", "geometric_median", {}),
]


@pytest.mark.parametrize(("seed", "attack", "aggregation", "options"), some(FALSE, 4))
@pytest.mark.filterwarnings("ignore::skcfl.exceptions.UnitsWarning")
def test_clusters_are_found_under_an_operator(seed, attack, aggregation, options):
    """Once an operator has settled on most of a cluster, long updates are those of the others."""
    data = make_clustered_regression(18, 3, n_features=6, n_samples=40, random_state=seed)
    lies = data.X, data.y, data.groups
    true = np.ones(18, dtype=bool)
    if attack is not None:
        false = corrupt(*lies, attack=attack, fraction=0.2, random_state=seed)
        lies, true = (false.X, false.y, false.groups), ~false.is_false
    model = CFLRegressor(**options, aggregation=aggregation, random_state=0)
    model.fit(lies[0], lies[1], groups=lies[2])
    assert adjusted_rand_score(data.labels[true], model.labels_[true]) == 1.0


def test_losses_below_zero_have_no_part():
    """Clusters are counted by what they gain: the loss of counts has no least value."""
    rng, groups = np.random.default_rng(0), np.repeat(np.arange(12), 60)
    X, slopes = rng.normal(size=(720, 4)), 0.5 * rng.normal(size=(3, 4))
    y = rng.poisson(np.exp((X * slopes[groups % 3]).sum(axis=1) + 3.0))
    model = CFLRegressor(loss="poisson", aggregation="geometric_median", random_state=0)
    model.fit(X, y, groups=groups)
    assert model.search_["held_out_loss"].max() < 0.0
    assert adjusted_rand_score(np.arange(12) % 3, model.labels_) == 1.0 and model.n_clusters_ == 3


def test_networks_by_default():
    """Under Adam updates stay long; each split has its rounds, on all rows as in the folds."""
    data = make_clustered_regression(9, 3, n_features=5, n_samples=40, random_state=3)
    model = CFLRegressor(hidden_layer_sizes=(16,), random_state=0)
    model.fit(data.X, data.y, groups=data.groups)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    first, second = sorted(node["round"] for node in model.tree_ if node["children"])
    assert second >= first + 20  # rounds of a half are counted anew


def test_far_longer_updates_have_no_say():
    faults = Faults(attack="scale", false=["client00", "client01"])
    data = make_clustered_regression(20, 2, n_samples=60, random_state=0)
    federation = InProcessFederation(data.X, data.y, data.groups, faults=faults)
    model = CFLRegressor(
        aggregation="geometric_median", training=Training(polish=False)
    ).fit_federation(federation)
    assert (
        adjusted_rand_score(data.labels[2:], model.labels_[2:]) == 1.0 and model.n_clusters_ == 2
    )


def few_rows(seed, n_clusters, n_rows=10):
    """24 clients of 1 to 3 clusters whose rows are as much noise as signal."""
    rng = np.random.RandomState(seed)
    groups = np.repeat(np.arange(24), n_rows)
    X, slopes = rng.standard_normal((len(groups), 5)), rng.standard_normal((n_clusters, 5))
    y = (X * slopes[groups % n_clusters]).sum(axis=1) + rng.standard_normal(len(groups))
    return X, y, groups


def test_held_out_rows_say_how_often_to_split():
    """Updates of clients that agree stay long where rows are few: no threshold serves."""
    for seed in some(range(4), 1):
        X, y, groups = few_rows(seed, 1)
        assert CFLRegressor(random_state=seed).fit(X, y, groups=groups).n_clusters_ == 1
    found = {"auto": 0, 0.27: 0}
    draws = some(range(12), 2)
    for seed in draws:
        X, y, groups = few_rows(seed, 3)
        for eps2 in found:
            cfl = CFLRegressor(eps2=eps2, random_state=seed).fit(X, y, groups=groups)
            found[eps2] += cfl.n_clusters_ == 3
    assert (
        found["auto"] >= 2 / 3 * len(draws) and found[0.27] <= len(draws) / 6
    )  # 33 of 40 draws, 1 of 12
    # Classifications, whose clients' updates stay longer.
    found = 0
    seeds = some(range(3), 1)
    for seed in seeds:
        data = make_clustered_classification(16, 4, 5, n_samples=100, random_state=seed)
        cfl = CFLClassifier(random_state=seed).fit(data.X, data.y, groups=data.groups)
        found += adjusted_rand_score(data.labels, cfl.labels_) == 1.0
    assert found == len(seeds)
    with pytest.raises(ValueError, match="eps2"):
        CFLRegressor(eps2="none").fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="batch_size is of local steps"):
        CFLRegressor(training=Training(batch_size=5)).fit(X, y, groups=groups)


def test_models_that_all_differ_are_leaves_of_the_root():
    rng = np.random.RandomState(0)
    groups = np.repeat(np.arange(8), 40)
    X, slopes = rng.standard_normal((320, 3)), 3 * rng.standard_normal((8, 3))
    y = (X * slopes[groups]).sum(axis=1) + 0.1 * rng.standard_normal(320)
    cfl = CFLRegressor().fit(X, y, groups=groups)
    local = LocalModelsRegressor().fit(X, y, groups=groups)
    np.testing.assert_allclose(cfl.coef_, local.coef_, rtol=1e-9)
    root, *leaves = cfl.tree_
    assert root["children"] == tuple(range(1, 9))
    assert [leaf["clients"].tolist() for leaf in leaves] == [[i] for i in range(8)]
    assert cfl.search_["n_clusters"][np.argmin(cfl.search_["held_out_loss"])] == 8
