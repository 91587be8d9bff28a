"""The search for the number of clusters: folds, candidates, and what decides."""

from functools import partial
from types import SimpleNamespace

import clustered
import numpy as np
import pytest
from clustered import fit, lines
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    CLoVERegressor,
    FedAvgRegressor,
    IFCAClassifier,
    IFCARegressor,
    LocalModelsRegressor,
)
from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import Objectives
from skcfl.federation.inprocess import open_rows
from skcfl.models import LinearModel
from skcfl.rounds.local_training import solve_local
from skcfl.search import n_clusters as _n_clusters
from skcfl.search.n_clusters import find_n_clusters

METHODS = [IFCARegressor, CLoVERegressor]


#: Twelve clients in three clusters.
regression = partial(clustered.regression, n_clients=12, n_features=4)


@pytest.mark.parametrize("Method", some(METHODS, 1))
def test_one_model_a_client_wins_where_all_differ(Method):
    rng = np.random.default_rng(0)
    X, y, codes = lines(5.0 * rng.normal(size=(8, 3)), 65, rng, noise=0.1)
    model = Method(random_state=0).fit(X, y, groups=codes)
    local = LocalModelsRegressor().fit(X, y, groups=codes)
    assert model.n_clusters_ == 8
    np.testing.assert_allclose(model.coef_, local.coef_, rtol=1e-9)
    assert model.alpha_ == model.model_.alpha_ == pytest.approx(local.alpha_)


# Draws on which a search without these rules finds other clusters.
DRAWS = [(25, 2), (50, 1), (50, 5), (50, 9), (50, 11), (25, 1)]


@pytest.mark.parametrize(("n_features", "seed"), some(DRAWS, 2))
def test_clusters_are_found_where_clients_hardly_know_their_own_models(n_features, seed):
    """Thirty rows in a fold: minimisers of single clients fit the noise, or each row."""
    rng = np.random.default_rng(seed)
    labels, slopes = np.arange(24) % 3, np.zeros((3, n_features))
    slopes[:, :5] = rng.normal(size=(3, 5))
    X, y, groups = lines(slopes[labels], 40, rng)
    model = IFCARegressor(random_state=seed).fit(X, y, groups=groups)
    assert adjusted_rand_score(labels, model.labels_) == 1.0


# The same of searches in which no model is replaced.
@pytest.mark.parametrize(("n_rows", "seed"), [(20, 3), (20, 13), (30, 12)])
def test_models_that_two_clusters_share_are_replaced(n_rows, seed, monkeypatch):
    """Starts from fewer clusters end where two clusters have one model, and a third has two."""
    fitted, rounds = _n_clusters._Fold._fit, []

    def counted(*about):
        result = fitted(*about)
        rounds.append(len(result.history["objective"]))
        return result

    monkeypatch.setattr(_n_clusters._Fold, "_fit", counted)
    rng = np.random.default_rng(seed)
    labels = np.arange(48) % 8
    X, y, groups = lines(rng.normal(size=(8, 5))[labels], n_rows, rng)
    model = IFCARegressor(random_state=seed).fit(X, y, groups=groups)
    assert adjusted_rand_score(labels, model.labels_) == 1.0
    assert len(rounds) > 4 * (len(model.search_["n_clusters"]))
    assert np.count_nonzero(model.history_["searched"]) == sum(rounds)


@pytest.mark.parametrize(("gain", "replaced"), [(0.03, False), (0.05, True)])
def test_models_are_replaced_where_losses_fall_by_a_hundredth(gain, replaced):
    """The third client's model serves the second client better than what it has."""
    left = np.array([[1.0, 9.0], [1.0, 9.0], [9.0, 1.0], [9.0, 1.0]])
    losses = np.array([[9.0], [9.0], [0.0], [1.0 - gain]])
    fold = _n_clusters._Fold.__new__(_n_clusters._Fold)
    fold.search = SimpleNamespace(min_gain=_n_clusters.MIN_GAIN)
    fold.train = SimpleNamespace(client_weights=np.ones(4))
    fold._candidates = np.array([2]), np.array([[7.0]]), losses
    found = fold._swapped(np.array([[5.0], [6.0]]), left)
    # Its own rows count as those of the median client.
    assert (found is not None) == replaced
    assert found is None or found.tolist() == [[5.0], [7.0]]


def test_replacements_that_end_in_larger_losses_are_not_taken(monkeypatch):
    data, found = regression(1, n_clusters=3, noise=1.0, n_samples=45), []
    for swap in (lambda fold, theta, left: None, lambda fold, theta, left: 0.0 * theta):
        monkeypatch.setattr(_n_clusters._Fold, "_swapped", swap)
        found.append(fit(IFCARegressor(random_state=0), data))
    # Beyond the three clusters that there are others may be as good by chance.
    one, other = (model.search_["held_out_loss"][:3] for model in found)
    np.testing.assert_array_equal(one, other)
    assert found[1].n_iter_ > found[0].n_iter_


@pytest.mark.parametrize("Method", some(METHODS, 1))
@pytest.mark.parametrize("seed", some(range(3), 1))
def test_outliers_beside_clusters_are_a_cluster_each(Method, seed):
    """Two clients that fit nowhere do not end the search with a model per client."""
    labels = np.concatenate([np.arange(24) % 2, [2, 3]])
    B = np.array([[1.5, -1.5, 0.5], [-1.5, 0.5, 1.5], [4, 4, 4], [-4, 4, -4]])
    X, y, groups = lines(B[labels], 20, np.random.default_rng(seed))
    model = Method("auto", random_state=0).fit(X, y, groups=groups)
    assert model.n_clusters_ == 4
    assert adjusted_rand_score(labels, model.labels_) == 1.0


@pytest.mark.parametrize("Method", some(METHODS[::-1], 1))
def test_one_model_wins_where_nobody_differs(Method):
    data = regression(1, n_clusters=1, noise=1.0, n_samples=45)
    model = fit(Method(random_state=0), data)
    fed = fit(FedAvgRegressor(), data)
    np.testing.assert_allclose(model.coef_, fed.coef_, rtol=1e-9)
    np.testing.assert_array_equal(model.search_["n_clusters"], [1, 2, 3, 12])
    assert model.alpha_ == pytest.approx(fed.alpha_)


@pytest.mark.parametrize("seed", some(range(2), 1))
@pytest.mark.parametrize("n_clusters", [1, 3])
def test_five_rows_a_client_tell_clusters(n_clusters, seed):
    options = {"n_clients": 12, "n_samples": 5, "noise": 1.0 if n_clusters == 1 else 0.1}
    data = regression(seed, n_clusters=n_clusters, **options)
    model = fit(IFCARegressor(n_init=2, random_state=0), data)
    assert model.n_clusters_ == n_clusters


def test_losses_are_those_of_models_of_all_rows():
    """Half of the optimism falls with the rows, by hand for one model per client."""
    rng = np.random.RandomState(0)
    codes = np.repeat(np.arange(6), 4)
    X = rng.standard_normal((24, 1))
    y = X[:, 0] * codes + rng.standard_normal(24)
    model = LinearModel(alpha=0.05).bind(1, dtype=float)

    def make():
        return open_rows(model, X, y, codes, 6)

    def fit(pool, n_clusters, start, candidates, drawn):
        result = solve_local(pool)
        result.cluster_params = result.params = pool.ask(Solve)[0]
        return result

    def losses(pool, W):
        return pool.ask(Objectives, W) - pool.model.penalties(W)

    found = find_n_clusters(make(), fit, np.random.RandomState(3), local=solve_local)
    search = found.extra["search"]
    pool, total = make(), 0.0
    for train, held in pool.deal_folds(10, np.random.RandomState(3)):
        W = train.ask(Solve)[0]
        optimism = losses(held, W) - losses(train, W)
        share = held.client_weights / pool.client_weights
        total += held.client_weights @ (losses(held, W) - 0.5 * share * optimism)
    last = search["held_out_loss"][search["n_clusters"] == 6]
    np.testing.assert_allclose(last, total / 24)


def test_counts_have_no_fractions_of_a_loss():
    """Means of 200: what clusters gain is next to nothing of a loss whose zero means nothing."""
    rng = np.random.RandomState(0)
    codes = np.repeat(np.arange(8), 30)
    X = rng.standard_normal((240, 1))
    y = rng.poisson(200 * np.exp(0.05 * (-1.0) ** codes)).astype(float)
    model = IFCARegressor(loss="poisson", random_state=0).fit(X, y, groups=codes)
    np.testing.assert_array_equal(model.labels_, codes[::30] % 2)


def test_each_number_has_its_prior():
    data = regression(2)
    model = fit(IFCARegressor(random_state=0), data)
    fed = fit(FedAvgRegressor(), data)
    assert model.n_clusters_ == 3
    assert model.alpha_ == pytest.approx(3 * fed.alpha_)
    told = fit(IFCARegressor(3, random_state=0), data)
    np.testing.assert_allclose(model.params_, told.params_, atol=1e-8)
    given = fit(IFCARegressor(alpha=0.01, random_state=0), data)
    assert given.alpha_ == 0.01


def test_numbers_that_were_stepped_over_are_tried():
    data = regression(3, n_clients=36, n_clusters=9, n_features=6, separation=8.0)
    model = fit(IFCARegressor(random_state=0), data)
    assert model.n_clusters_ == 9
    assert {8, 9, 10} <= set(model.search_["n_clusters"].tolist())


SIZES = [[1] * 6, [1, 1, 2, 2, 3, 3], [1, 40, 40, 2]]
FEW = [(Method, sizes) for sizes in SIZES for Method in (*METHODS, IFCAClassifier)]


@pytest.mark.parametrize(("Method", "sizes"), some(FEW[::4] + FEW[1::2] + FEW[2::4], 2))
def test_clients_of_one_to_three_rows(Method, sizes):
    rng = np.random.RandomState(0)
    codes = np.repeat(np.arange(len(sizes)), sizes)
    X = rng.standard_normal((len(codes), 2))
    y = X[:, 0] + 0.1 * rng.standard_normal(len(codes))
    y = np.arange(len(y)) % 3 > 0 if Method is IFCAClassifier else y
    model = Method(n_init=2, random_state=0).fit(X, y, groups=codes)
    assert np.isfinite(model.params_).all()
    if max(sizes) == 1:
        # Nobody can judge.
        assert model.n_clusters_ == 1


def test_rows_that_a_client_was_fitted_to_do_not_judge_it():
    """Clients of one row have it in all training folds: their own models would look perfect."""
    rng = np.random.RandomState(0)
    X = rng.standard_normal((60, 2))
    y = X[:, 0] + rng.standard_normal(60)
    codes = np.concatenate([np.arange(40), 40 + np.arange(20) // 10])
    model = IFCARegressor(n_init=2, random_state=0).fit(X, y, groups=codes)
    assert model.n_clusters_ < 42


def test_shared_layers_leave_out_one_model_a_client():
    data = regression(4, n_clients=4, n_samples=20)
    options = {"hidden_layer_sizes": (4,), "max_iter": 2, "random_state": 0, "tol": 0}
    apart = fit(IFCARegressor(**options), data)
    shared = fit(IFCARegressor(shared_layers=1, **options), data)
    assert shared.n_clusters_ <= 4
    assert len(shared.search_["n_clusters"]) <= len(apart.search_["n_clusters"])


SAMPLED = [(IFCARegressor, "auto"), (CLoVERegressor, 3), (CLoVERegressor, "auto")]
SAMPLED += [(IFCARegressor, 3)]


@pytest.mark.parametrize(("Method", "n_clusters"), some(SAMPLED, 2))
def test_many_clients_search_by_a_sample(Method, n_clusters, monkeypatch):
    data = regression(5, n_clients=40, n_samples=20)
    whole = fit(Method(n_clusters, random_state=0), data)
    monkeypatch.setattr(_n_clusters, "SAMPLE", 12)
    some = fit(Method(n_clusters, random_state=0), data)
    assert some.n_clusters_ == whole.n_clusters_ == 3
    np.testing.assert_array_equal(some.labels_, whole.labels_)
    np.testing.assert_allclose(some.params_, whole.params_, atol=1e-8)
    # Most of the clients were spared the training of starts.
    assert some.floats_up_ < whole.floats_up_


def batches_of(model, data, monkeypatch, width=None):
    """The numbers of clusters that a fit has fitted at the same time."""
    batches, fit = [], _n_clusters._Search._fit

    def noted(search, numbers):
        search.width = width or search.width
        batches.append(numbers)
        return fit(search, numbers)

    with monkeypatch.context() as patch:
        patch.setattr(_n_clusters._Search, "_fit", noted)
        model.fit(data.X, data.y, groups=data.groups)
    return batches


TRIED = {2: [[1], [2, 3], [4], [12]], 3: [[1], [2, 3], [4, 5], [12]]}


@pytest.mark.parametrize("n_clusters", TRIED)
@pytest.mark.parametrize("Method", some(METHODS, 1))
def test_numbers_that_will_be_tried_go_together(Method, n_clusters, monkeypatch):
    data = regression(6, n_samples=50, n_clusters=n_clusters)
    model, alone = Method(random_state=0), Method(random_state=0)
    batches = batches_of(model, data, monkeypatch)
    assert batches == TRIED[n_clusters]
    # The same numbers, one after the other, wait for more exchanges.
    numbers = [K for batch in batches for K in batch]
    assert batches_of(alone, data, monkeypatch, width=1) == [[K] for K in numbers]
    assert model.calls_ < 0.9 * alone.calls_
    np.testing.assert_array_equal(model.labels_, alone.labels_)
    np.testing.assert_allclose(model.params_, alone.params_, atol=1e-8)
    search = model.search_
    assert search["n_clusters"].tolist() == numbers
    assert search["accepted"].tolist() == [K <= n_clusters for K in numbers]
    # All that the folds send is some number's; the rest, of the final fit, is as it was.
    for name in ("floats_up", "floats_down"):
        rest = [getattr(one, f"{name}_") - one.search_[name].sum() for one in (model, alone)]
        assert rest[0] == rest[1] > 0


def test_clusters_start_from_the_largest_number_before(monkeypatch):
    seen, starts = [], _n_clusters._Fold._starts

    def noted(fold, numbers):
        given = starts(fold, numbers)
        if 1 < numbers[0] < 12:
            before = fold.models[numbers[0] - 1]
            for K, start in zip(numbers, given, strict=True):
                assert len(start) == K
                np.testing.assert_array_equal(start[: len(before)], before)
            seen.append(numbers)
        return given

    monkeypatch.setattr(_n_clusters._Fold, "_starts", noted)
    data = regression(6, n_samples=50)
    fit(IFCARegressor(random_state=0), data)
    assert seen == [[2, 3]] * 4 + [[4, 5]] * 4


def test_clients_of_few_rows_wait_for_one_number(monkeypatch):
    """With less than two rows of a fold for a parameter, no two clusters are added at once."""
    data = regression(6, n_samples=12, n_clients=60)
    batches = batches_of(IFCARegressor(random_state=0), data, monkeypatch)
    assert all(len(numbers) == 1 for numbers in batches)


@pytest.mark.parametrize("cls", [FedAvgRegressor, IFCARegressor])
def test_alpha_of_few_rows_of_one_client_with_large_weights(cls):
    """Their Hessian would show them: the unit is that of no known noise."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(3, 8)), rng.normal(size=3)
    fitted = cls().fit(X, y, groups=np.zeros(3), sample_weight=[100.0, 100.0, 1.0])
    assert fitted.alpha_ == pytest.approx(1 / 201)
