"""Methods under a robust aggregation, by rounds and in three stages: what false clients cost."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    CFLRegressor,
    CLoVERegressor,
    DittoRegressor,
    FedAvgRegressor,
    FedPACClassifier,
    FedProtoClassifier,
    FedRepRegressor,
    FeSEMRegressor,
    IFCAClassifier,
    IFCARegressor,
    OneShotRegressor,
    PerFedAvgRegressor,
    RobustClusteredFLRegressor,
    Training,
)
from skcfl.calls.curvatures import Solve
from skcfl.datasets import corrupt, make_clustered_classification, make_clustered_regression
from skcfl.federation import Faults, InProcessFederation
from skcfl.models import LinearModel
from skcfl.rounds.aggregation import GeometricMedian
from skcfl.search.pull import choose_pull, pull_grid

# Clients in other units are what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore::skcfl.exceptions.UnitsWarning")

DATA = make_clustered_regression(24, 3, 5, n_samples=40, random_state=0)
IDS, CODES = np.unique(DATA.groups, return_inverse=True)
# Two of eight clients of each cluster.
FALSE = np.concatenate([np.flatnonzero(DATA.labels == k)[:2] for k in range(3)])
LIES = np.isin(CODES, FALSE)
HONEST = ~np.isin(np.arange(24), FALSE)


def honest_score(model):
    return model.score(DATA.X[~LIES], DATA.y[~LIES], groups=DATA.groups[~LIES])


@pytest.mark.parametrize(
    "cls, aggregation", [(IFCARegressor, "median"), (CLoVERegressor, "geometric_median")]
)
def test_flipped_targets_cost_the_honest_nothing(cls, aggregation):
    model = cls(n_clusters=3, aggregation=aggregation, random_state=0)
    model.fit(DATA.X[~LIES], DATA.y[~LIES], groups=DATA.groups[~LIES])
    clean = honest_score(model)
    model.fit(DATA.X, np.where(LIES, -DATA.y, DATA.y), groups=DATA.groups)
    assert honest_score(model) == pytest.approx(clean, abs=1e-4)
    assert adjusted_rand_score(DATA.labels[HONEST], model.labels_[HONEST]) == 1.0
    assert model.suspicion_[FALSE].min() > 2.0
    assert model.suspicion_[HONEST].max() < 1.0


def test_without_false_clients_the_polished_models_are_those_of_the_mean():
    """Nobody is set aside, and the exact minimisers are the same."""
    wanted = IFCARegressor(n_clusters=3, alpha=0.01, standardize=False, random_state=0)
    wanted.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert not hasattr(wanted, "suspicion_")
    for aggregation in ("median", "trimmed_mean", "geometric_median", "centered_clipping"):
        model = clone(wanted).set_params(aggregation=aggregation).fit(DATA.X, DATA.y, DATA.groups)
        assert_allclose(model.cluster_params_, wanted.cluster_params_, atol=1e-6)


@pytest.mark.parametrize("seed", range(5, 9))
def test_polished_models_are_those_of_the_clients_that_are_not_set_aside(seed):
    """Without the first ones that are set aside others are, too."""
    data = make_clustered_regression(12, 1, 3, n_samples=20, noise=0.5, random_state=seed)
    codes = np.unique(data.groups, return_inverse=True)[1]
    false = np.random.default_rng(seed).permutation(12)[:3]
    y = data.y + np.where(np.isin(codes, false), 0.6 * (codes + 1), 0.0)
    model = IFCARegressor(1, aggregation="geometric_median", alpha=0.0, random_state=0)
    model.fit(data.X, y, groups=data.groups)
    rows = np.isin(codes, np.flatnonzero(model.suspicion_ <= 1.0))
    A = np.column_stack([data.X, np.ones(len(y))])
    wanted = np.linalg.lstsq(A[rows], y[rows], rcond=None)[0]
    assert_allclose([*model.cluster_coef_[0], model.cluster_intercept_[0]], wanted, rtol=1e-6)
    assert rows.sum() < 240


def test_networks_and_objects():
    data = make_clustered_classification(12, 2, 4, n_samples=40, random_state=0)

    class First:
        """One vector per cluster: that of its heaviest client."""

        def aggregate(self, messages, weights):
            assert messages.shape == (len(weights), messages.shape[1])
            return messages[weights.argmax()]

    for aggregation in ("trimmed_mean", "krum", First()):
        model = IFCAClassifier(
            n_clusters=2,
            hidden_layer_sizes=(8,),
            aggregation=aggregation,
            max_iter=5,
            tol=0,
            random_state=0,
        ).fit(data.X, data.y, groups=data.groups)
        assert model.suspicion_.shape == (12,) and np.isfinite(model.suspicion_).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"aggregation": "average"},
        {"aggregation": object()},
        {"aggregation": pd.Series(["median"])},
        {"aggregation": pd.DataFrame({"a": [1]}).groupby("a")},
        {"aggregation": GeometricMedian},
    ],
)
def test_bad_arguments(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        FedAvgRegressor(**wrong).fit(DATA.X, DATA.y, groups=DATA.groups)


def test_an_unknown_number_of_clusters_and_one_client_in_other_units():
    data = make_clustered_regression(12, 2, 3, n_samples=45, random_state=0)
    ids = np.unique(data.groups)
    y = np.where(data.groups == ids[3], 1e6, 1.0) * data.y
    model = IFCARegressor(aggregation="median", random_state=0).fit(data.X, y, groups=data.groups)
    true = ids != ids[3]
    assert adjusted_rand_score(data.labels[true], model.labels_[true]) == 1.0


@pytest.mark.parametrize("units", some(["X", "y"], 1))
@pytest.mark.parametrize(
    "model",
    [
        FedAvgRegressor(),
        CFLRegressor(eps2=0.27),
        FeSEMRegressor(n_clusters=3),
        DittoRegressor(),
        FedRepRegressor(),
        PerFedAvgRegressor(max_iter=30, tol=0),
        FedPACClassifier(max_iter=20, tol=0),
        FedProtoClassifier((4,), max_iter=10, tol=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_one_client_in_other_units_costs_the_others_nothing(model, units):
    """Steps, pulls, splits, starts and prototypes are what most clients say."""
    classes = hasattr(model, "predict_proba")
    if classes and units == "y":
        pytest.skip("Classes have no units.")
    here, y = CODES != 0, (DATA.y > 0).astype(int) if classes else DATA.y
    model = clone(model).set_params(aggregation="geometric_median", random_state=0)
    model.fit(DATA.X[here], y[here], groups=DATA.groups[here])
    clean = model.score(DATA.X[here], y[here], groups=DATA.groups[here])
    X = DATA.X * np.where(here | (units == "y"), 1.0, 1e6)[:, None]
    model.fit(X, y * (1.0 if units == "X" else np.where(here, 1.0, 1e6)), groups=DATA.groups)
    score = model.score(DATA.X[here], y[here], groups=DATA.groups[here])
    assert score > clean - 0.01


def test_the_pull_is_chosen_by_most_clients():
    X = DATA.X * np.where(CODES == 0, 1e6, 1.0)[:, None]
    federation = InProcessFederation(X, DATA.y, DATA.groups)
    pool = federation.open(LinearModel(alpha=0.01, standardize=False).bind(5), random_state=0)
    strengths = [pull_grid(pool, 3, robust=robust)[1] for robust in (False, True)]
    assert strengths[0] > 1e6 * strengths[1]

    def fit(part, lams):
        """Under the weak pull the honest are well off, under the strong one the first."""
        own, zero = part.ask(Solve)[0], np.zeros((part.n_clients, 6))
        yield np.where((np.arange(24) == 0)[:, None], own, zero)
        yield np.where((np.arange(24) == 0)[:, None], 1e3, own)

    for robust in (False, True):
        lam, search = choose_pull(pool, np.array([1.0, 0.0]), fit, robust)
        assert lam == (0.0 if robust else 1.0)
        assert np.isfinite(search["lam_search"]["held_out_loss"]).all()
    alone = choose_pull(pool.subset([3]), np.array([np.inf, 2.0, 1.0, 0.0]), fit)
    assert alone == (1.0, {})  # it is its own shared model


# ------------------------------------------------------------------------------------ three stages


def honest(model, lies):
    rows = ~np.isin(lies.groups, lies.false)
    score = model.score(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    ari = adjusted_rand_score(DATA.labels[~lies.is_false], model.labels_[~lies.is_false])
    return score, ari


CLEAN = RobustClusteredFLRegressor(n_clusters=3, random_state=0)
CLEAN = CLEAN.fit(DATA.X, DATA.y, groups=DATA.groups).score(DATA.X, DATA.y, groups=DATA.groups)


ATTACKS = [("noise", "median"), ("sign_flip", "trimmed"), ("scale_X", "trimmed")]


@pytest.mark.parametrize("attack, clusterer", ATTACKS)
def test_false_rows(attack, clusterer):
    # Features in other units make models near zero, which agree: fewer than a cluster.
    fraction = 0.1 if attack == "scale_X" else 0.2
    options = {"attack": attack, "fraction": fraction, "random_state": 2}
    lies = corrupt(DATA.X, DATA.y, DATA.groups, **options)
    model = RobustClusteredFLRegressor(n_clusters=3, clusterer=clusterer, random_state=0)
    score, ari = honest(model.fit(lies.X, lies.y, groups=lies.groups), lies)
    assert ari == 1.0
    assert score > CLEAN - 0.01
    assert (model.suspicion_[lies.is_false] > 1).all()


@pytest.mark.parametrize("attack", ["scale", "alie"])
def test_false_messages(attack):
    """One of eight clients of each cluster."""
    ids = np.unique(DATA.groups)
    false = np.concatenate([ids[DATA.labels == k][:1] for k in range(3)])
    faults = Faults(attack=attack, false=false)
    how = {"training": Training(polish=False), "tol": 1e-3, "random_state": 0}
    model = RobustClusteredFLRegressor(n_clusters=3, **how)
    model.fit_federation(InProcessFederation(DATA.X, DATA.y, DATA.groups, faults=faults))
    rows = ~np.isin(DATA.groups, false)
    true = ~np.isin(ids, false)
    assert adjusted_rand_score(DATA.labels[true], model.labels_[true]) == 1.0
    score = model.score(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    assert score > CLEAN - 0.01


def test_it_is_one_shot_clustering_with_other_defaults():
    same = {"clusterer": "trimmed", "trim": 0.25, "n_clusters": 3}
    same["aggregation"] = "geometric_median"
    one = OneShotRegressor(**same, random_state=0).fit(DATA.X, DATA.y, groups=DATA.groups)
    other = RobustClusteredFLRegressor(n_clusters=3, random_state=0)
    other.fit(DATA.X, DATA.y, groups=DATA.groups)
    assert_array_equal(one.params_, other.params_)


def test_fits_that_are_only_judged_are_short():
    """Some rounds before polishing, not those of a fit that is published."""
    few = np.flatnonzero(np.isin(DATA.groups, np.unique(DATA.groups)[:8]))
    rows = few[np.arange(len(few)) % 4 == 0]
    model = RobustClusteredFLRegressor(random_state=0)
    model.fit(DATA.X[rows], DATA.y[rows], groups=DATA.groups[rows])
    searched = model.history_["searched"]
    tried = np.unique(searched[(searched > 0) & (searched < 8)])
    # Ten folds of so few rows.
    assert all((searched == K).sum() <= 10 * 15 for K in tried)


@pytest.mark.parametrize("case", [(9, 3, 6, 8, 1.0, 10, None), (10, 4, 2, 20, 0.5, 1, "noise")])
def test_rounding_sets_no_client_aside(case):
    """Two clients of a cluster are equally far from their mean, and as good a median."""
    n_clients, n_clusters, n_features, n_samples, noise, seed, attack = case
    sizes = {"n_samples": n_samples, "noise": noise, "random_state": seed}
    data = make_clustered_regression(n_clients, n_clusters, n_features, **sizes)
    X, y, found = data.X, data.y, set()
    if attack:
        lies = corrupt(X, y, data.groups, attack=attack, fraction=0.13, random_state=seed)
        X, y = lies.X, lies.y
    for draw in range(4):
        noise = 1e-9 * (draw > 0) * np.random.default_rng(draw).normal(size=len(y))
        model = RobustClusteredFLRegressor(n_clusters=n_clusters, random_state=0)
        model.fit(X, y + noise, groups=data.groups)
        found.add(tuple(model.suspicion_ > 1.0))
    assert len(found) == 1
