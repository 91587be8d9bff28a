"""Choice of lam, refit, graph, penalty and alpha by rows held out: what is judged is returned."""

from types import SimpleNamespace

import numpy as np
import pytest
from clustered import fit
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import adjusted_rand_score
from trials import some

from skcfl import (
    GTV,
    ConvexClusteredFL,
    ConvexClusteredFLRegressor,
    FedAvgRegressor,
    FPFCRegressor,
    GTVRegressor,
    LamSearch,
    LocalModelsRegressor,
)
from skcfl.calls.curvatures import Solve
from skcfl.calls.first_order import Losses, Objectives, ObjectivesGradients
from skcfl.datasets import make_clustered_regression
from skcfl.federation.inprocess import open_rows
from skcfl.federation.result import Result
from skcfl.graphs import chain_graph, complete_graph
from skcfl.models import LinearModel, Location
from skcfl.search.candidates import Alphas, Family, Member
from skcfl.search.fold_fits import FoldFits
from skcfl.search.judges import HeldOutLoss
from skcfl.search.models import ModelSearch


def clusters(seed=0, **options):
    options = {"n_clients": 12, "n_features": 4, "n_samples": 20} | options
    return make_clustered_regression(random_state=seed, **options)


def continuum(seed=0, n_clients=20, rows=12, spread=0.5, noise=1.0):
    """Coefficients that differ from client to client around a common model."""
    rng = np.random.RandomState(seed)
    coef = 1.0 + spread * rng.standard_normal((n_clients, 4))
    groups = np.repeat(np.arange(n_clients), rows)
    X = rng.standard_normal((len(groups), 4))
    y = np.einsum("ij,ij->i", X, coef[groups]) + noise * rng.standard_normal(len(groups))
    return X, y, groups


def halves(X, y, groups, seed=0):
    """Training and test rows, half of every client's each."""
    rng = np.random.RandomState(seed)
    order = np.lexsort((rng.uniform(size=len(y)), groups))
    train, test = order[::2], order[1::2]
    return (X[train], y[train], groups[train]), (X[test], y[test], groups[test])


def score(model, train, test):
    model.fit(train[0], train[1], groups=train[2])
    return model.score(test[0], test[1], groups=test[2])


# ------------------------------------------------------------------------ the three truths


FOLDS = ConvexClusteredFLRegressor(search=LamSearch(cv=5))
TRUTHS = [
    (model, truth)
    for model in (ConvexClusteredFLRegressor(), GTVRegressor(), FOLDS)
    for truth in ("clusters", "continuum", "same")
]


@pytest.mark.parametrize(("model", "truth"), some(TRUTHS, 3))
def test_right_in_all_three_truths(truth, model):
    """Not worse than the better of one model for all and one per client, but for chance."""
    data = clusters(n_clients=9, n_features=3, n_samples=24)
    rows = {
        "clusters": (data.X, data.y, data.groups),
        "continuum": continuum(spread=0.7, rows=16, n_clients=12),
        "same": continuum(spread=0.0, n_clients=16),
    }[truth]
    train, test = halves(*rows)
    other = max(score(each, train, test) for each in (FedAvgRegressor(), LocalModelsRegressor()))
    assert score(model, train, test) > other + (-0.01 if truth == "same" else 0.01)
    if truth == "clusters":
        assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    if truth == "same" and type(model) is ConvexClusteredFLRegressor and model.search is None:
        assert model.n_clusters_ == 1


@pytest.mark.parametrize("seed", some([0, 3], 1))
def test_clusters_that_all_folds_find_win_within_the_noise(seed):
    """Penalised per-client models are a little better on the rows held out, by chance."""
    data = make_clustered_regression(18, 3, n_samples=25, random_state=0)
    model = ConvexClusteredFLRegressor(graph="knn", penalty="l2", random_state=seed)
    model.fit(data.X, data.y, groups=data.groups)
    assert adjusted_rand_score(data.labels, model.labels_) == 1.0
    search = model.lam_search_
    best = search["criterion"].argmin()
    assert search["n_clusters"][best] > 10 and not search["chosen"][best]


class Given(Family):
    """A family of one function, of lam: models of clients and their labels."""

    def __init__(self, solve=None, lams=(1.0,), refits=(False,), **how):
        super().__init__({"penalty": "?"}, np.asarray(lams, dtype=float), refits, **how)
        self.function = solve

    def problem(self, pool):
        return pool

    def solve(self, problem, lam, state):
        params, labels = self.function(problem, lam)
        return Result(cluster_params=params, labels=labels, params=params), None


def searched(judge, solve, lams, **how):
    """A search that has run, and its best member."""
    search = ModelSearch([Given(solve, lams, **how)], judge)
    return search, search.run(judge.pools[0].ledger)


@pytest.mark.parametrize(("better", "lam"), [(25, 0.1), (16, 10.0)])
def test_one_wild_client_does_not_outweigh_all_others(better, lam):
    """Extrapolated counts may be wrong by orders of magnitude: then ranks of the losses decide."""
    losses = 3.0 + np.linspace(0.0, 0.1, 30)
    others = losses - np.where(np.arange(30) < better, 1.0, -1.0)
    others[-1] += 400.0
    tried = {0.1: others, 10.0: losses}

    def solve(problem, lam):
        return tried[lam][:, None], np.arange(30)

    assert others.mean() > losses.mean()
    assert searched(_Distance(30), solve, [0.1, 10.0], grows=False)[1].lam == lam


def _search(members, alphas=None, fused=100.0, solve=None, whole=None):
    """A search that has judged members: alpha, lam, number of models, losses of the clients."""
    judge = _Distance(len(members[0][3]))
    judge.whole = whole
    search = ModelSearch([Given(solve, refits=(True,), fused=fused)], judge, alphas)
    for alpha, lam, n_models, losses in members:
        member = Member(0, alpha, lam, True, np.asarray(losses), (n_models, n_models))
        member.value = float(np.mean(losses))
        search.members[0, alpha, lam, True] = member
    return search


def test_less_local_penalty_is_not_simpler():
    """Fewer models that are hardly worse are taken, but not with a smaller alpha."""
    best, other = np.ones(8), 1.001 + 0.1 * (-1.0) ** np.arange(8)
    for alpha, lam in [(2.0, 5.0), (3.0, 5.0), (1.0, 1.0)]:
        search = _search([(2.0, 1.0, 5.0, best), (alpha, 5.0, 4.0, other)])
        assert search.choose().lam == lam


def test_one_model_for_all_within_the_noise():
    """Within 1.25 standard errors, if most clients are not worse off."""
    noise = np.repeat([-1.0, 1.5, 3.0], [6, 2, 1])
    best, error = np.ones(9), noise.std() / np.sqrt(8)
    wild = np.append(np.full(8, 1.0), -5.5)
    for losses, lam in [
        (1.0 + 1.2 * error + noise, 100.0),
        (1.0 + 1.3 * error + noise, 1.0),
        # Worse for eight of nine clients.
        (1.0 + wild, 1.0),
    ]:
        search = _search([(None, 1.0, 9.0, best), (None, 100.0, 1.0, losses)])
        assert search.choose().lam == lam


def test_one_model_for_all_keeps_its_prior():
    losses = 1.0 + 0.1 * (-1.0) ** np.arange(8)
    members = [(1.0, 100.0, 1.0, losses), (4.0, 100.0, 1.0, np.full(8, 0.99))]
    assert _search(members, Alphas.automatic(1.0, 8)).choose().alpha == 1.0
    assert _search(members, Alphas.given([1.0, 4.0])).choose().alpha == 4.0
    members[0] = (1.0, 100.0, 1.0, losses + 1.0)
    assert _search(members, Alphas.automatic(1.0, 8)).choose().alpha == 4.0


def fake_rows(**attributes):
    """A pool of all rows that is its own lane."""
    rows = SimpleNamespace(random_state=np.random.RandomState(0), ledger=None, **attributes)
    rows.lane = lambda seed: rows
    return rows


@pytest.mark.parametrize(
    ("n_free", "finer", "lam"),
    [
        (3, [0, 0, 0, 1, 2, 3], 1.0),
        # The rows of a client alone do not determine its model: finer partitions are out, too.
        (4, [0, 0, 0, 1, 2, 3], 100.0),
        # In many dimensions no rows do, and next to each other none of these is small.
        (10, [0, 0, 1, 1, 2, 2], 1.0),
        # Another number of clusters than the folds have was not judged.
        (1, [0, 0, 0, 0, 0, 0], 5.0),
    ],
)
def test_clusters_of_all_rows_are_looked_at(n_free, finer, lam):
    """Six clients of three rows."""
    partitions = {1.0: finer, 5.0: [0, 0, 0, 0, 0, 1]}

    def solve(problem, lam):
        return np.zeros((6, 1)), np.array(partitions[1.0 if lam < 5.0 else 5.0])

    sizes, model = np.full(6, 3), SimpleNamespace(n_free=n_free)
    members = [(None, 0.0, 6.0, np.full(6, 2.0)), (None, 1.0, 3.5, np.ones(6))]
    members += [(None, 5.0, 2.0, np.full(6, 1.2)), (None, 100.0, 1.0, np.full(6, 1.5))]
    whole = fake_rows(client_sizes=sizes, model=model)
    assert _search(members, solve=solve, whole=whole).choose().lam == lam
    if lam == 100.0:
        # Own models have as few rows, each of them: they do not take its place.
        members[0] = (None, 0.0, 6.0, np.full(6, 1.4))
        assert _search(members, solve=solve, whole=whole).choose().lam == 1.0


def test_all_rows_fuse_at_another_lam():
    """As many clusters as in the folds are looked for, and published with their lam."""

    def solve(problem, lam):
        n_clusters = 6 if lam < 1.5 else 2 if lam < 10.0 else 1
        return np.zeros((6, 1)), np.arange(6) % n_clusters

    whole = fake_rows(client_sizes=np.full(6, 9), model=SimpleNamespace(n_free=3))
    members = [(None, 0.0, 6.0, np.full(6, 2.0)), (None, 1.0, 2.0, np.ones(6))]
    members += [(None, 100.0, 1.0, np.full(6, 1.5))]
    search = _search(members, solve=solve, whole=whole)
    best = search.choose()
    assert 1.5 <= best.lam < 2.0 and best.value == 1.0
    assert search.members[0, None, best.lam, True] is best


def test_the_widest_gap_of_a_line_is_looked_into():
    """Between each client alone and one model for all, however far from the best both are."""
    members = [(None, lam, n, np.full(8, 9.0)) for lam, n in [(1.0, 50.0), (4.0, 50.0)]]
    members += [(None, 16.0, 2.0, np.full(8, 9.0)), (None, 0.0, 50.0, np.ones(8))]
    search = _search(members)
    best = search.members[0, None, 0.0, True]
    assert search._between_partitions(best) == [(0, 8.0)]


def test_each_end_has_a_prior_once_a_model(few_folds):
    X, y, groups = continuum(rows=5, n_clients=9)
    model = GTVRegressor(graph="knn", penalty="l2", search=LamSearch(n_lams=4))
    model.fit(X, y, groups=groups)
    search, unit = model.lam_search_, FedAvgRegressor().fit(X, y, groups=groups).alpha_
    assert_allclose(np.unique(search["alpha"]), unit * np.array([1.0, 3.0, 9.0]))
    inner = (search["lam"] > 0.0) & (search["n_clusters"] > 1.0)
    values, tried = np.unique(search["alpha"][inner], return_counts=True)
    assert values[tried.argmax()] == np.unique(search["alpha"])[1]
    for lam in (0.0, search["lam"].max()):
        assert set(search["alpha"][search["lam"] == lam]) == set(search["alpha"])


# ------------------------------------------------------------- what is judged is returned


def test_the_fit_is_the_member_that_was_chosen(few_folds):
    data = clusters(n_clients=6)
    auto = fit(ConvexClusteredFLRegressor(search=LamSearch(n_lams=2), random_state=0), data)
    search = auto.lam_search_
    chosen = np.flatnonzero(search["chosen"])
    assert len(chosen) == 1
    (k,) = chosen
    assert search["lam"][k] == auto.lam_ and search["alpha"][k] == auto.alpha_
    assert search["refit"][k] == auto.refit_ and search["penalty"][k] == auto.penalty_
    options = {"alpha": auto.alpha_, "penalty": auto.penalty_, "refit": auto.refit_}
    graph = str(search["graph"][k])
    same = fit(ConvexClusteredFLRegressor(auto.lam_, graph=graph, **options), data)
    assert_allclose(same.params_, auto.params_)
    assert_array_equal(same.labels_, auto.labels_)
    # Nothing tried is better by more than two errors of the difference, those of clusters that
    # are the same in all folds.
    gain = search["criterion"][k] - search["criterion"]
    assert (gain <= 2.0 * search["standard_error"] + 1e-12).all()


def test_held_out_losses_are_those_of_fits():
    """The judge's figures from its own definition: fits to each fold, and their optimism."""
    data = clusters(n_clients=6)
    codes = np.unique(data.groups, return_inverse=True)[1]
    model = LinearModel(alpha=0.1).bind(4, dtype=float)
    pool = open_rows(model, data.X, data.y, codes, 6)
    judge = HeldOutLoss(pool, np.random.RandomState(0))

    def solve(pool, lam):
        return pool.ask(Solve)[0], np.arange(6)

    best = ModelSearch([Given(solve, [0.0], grows=False)], judge).run(pool.ledger)
    total = 0.0

    def losses(some, W):
        return some.ask(Objectives, W) - some.model.penalties(W)

    for train, held in pool.deal_folds(5, _after_seeds(0)):
        W = train.ask(Solve)[0]
        optimism = losses(held, W) - losses(train, W)
        share = held.client_weights / pool.client_weights
        total += held.client_weights @ (losses(held, W) - 0.5 * share * optimism)
        assert optimism.sum() > 0.0
    assert_allclose(best.value, total / len(data.y))
    assert pool.ledger.up > 0


def _after_seeds(seed):
    """The state of a judge's random numbers when it deals."""
    rng = np.random.RandomState(seed)
    rng.randint(np.iinfo(np.int32).max, size=5)
    return rng


@pytest.mark.parametrize("sizes", [[1, 1, 2], [2, 3, 7, 40]])
def test_rows_are_dealt(sizes):
    codes = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.RandomState(0)
    X, w = rng.standard_normal((len(codes), 2)), rng.uniform(0.5, 2, len(codes))
    model = LinearModel(alpha=0.1).bind(2, dtype=float)
    pool = open_rows(model, X, X[:, 0], codes, len(sizes), sample_weight=w)
    folds = pool.deal_folds(3, 0)
    held = sum(h.client_weights for _, h in folds)
    several = np.array(sizes) > 1
    # Every row of a client that has several is held out once, that of one row never.
    assert_allclose(held, np.where(several, pool.client_weights, 0.0))
    for train, h in folds:
        assert_allclose(train.client_weights + h.client_weights, pool.client_weights)
        assert not train.without_rows.any()
        assert (h.client_sizes <= np.ceil(np.array(sizes) / 3)).all()
    first, again = (pool.deal_folds(3, 5)[0][1].ask(Losses, np.ones((1, 3))) for _ in range(2))
    assert_array_equal(first, again)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_classes_are_dealt_evenly(n_classes):
    rng = np.random.RandomState(0)
    codes = np.repeat(np.arange(4), 12)
    y = rng.randint(n_classes, size=48)
    model = LinearModel(loss="log_loss", alpha=0.1, fit_intercept=False).bind(n_classes, n_classes)
    # One feature a class: gradients at 0 count the rows of each.
    pool = open_rows(model, np.eye(n_classes)[y], y, codes, 4)
    W = np.zeros((4, model.n_params))
    count = np.stack([np.bincount(y[codes == c], minlength=n_classes) for c in range(4)])
    for _, held in pool.deal_folds(4, 0):
        slopes = held.ask(ObjectivesGradients, W)[1] * held.client_weights[:, None]
        found = np.abs(slopes).reshape(4, n_classes, -1).max(axis=2) / (1 - 1 / n_classes)
        assert (found > count // 4 - 0.5).all() and (found < -(-count // 4) + 0.5).all()


@pytest.mark.parametrize(("best_at", "edge"), [(1e-3, 1.0), (1e4, 100.0)])
def test_the_grid_holds_both_ends_and_grows(best_at, edge):
    """The best of a parabola beyond the first grid, below and above it."""
    tried = []

    def solve(problem, lam):
        tried.append(lam)
        size = np.log(max(lam, 1e-30) / best_at)
        return np.full((3, 1), min(abs(size), 1e3)), np.arange(3)

    lams = np.geomspace(1.0, 100.0, 5)
    search, best = searched(_Distance(), solve, lams)
    assert 0.0 in tried
    assert 0.3 < best.lam / best_at < 3.0
    assert search.warning is None
    search, best = searched(_Distance(), solve, lams, grows=False)
    assert best.lam == pytest.approx(edge)
    assert "of those tried" in search.warning


class _Distance:
    """Judges models by their size."""

    whole = None

    def __init__(self, n=3):
        self.pools = [open_rows(Location().bind(1), np.zeros((n, 1)), None, np.arange(n), n)]
        self.weights = np.ones(n)

    def losses(self, k, models, ledger):
        return [W[:, 0] for W in models]


# ------------------------------------------------------------------------------- options


def test_alphas_compete(few_folds):
    """Separable classes and few rows ask for more penalty than one model for all does."""
    X, y, groups = continuum(rows=4, noise=3.0, spread=0.0, n_clients=6)
    wide = FPFCRegressor(search=LamSearch(alphas=[1e-6, 3.0, 1e6], n_lams=2)).fit(X, y, groups)
    assert wide.alpha_ in (1e-6, 3.0)
    assert set(wide.lam_search_["alpha"]) == {1e-6, 3.0, 1e6}
    model = ConvexClusteredFL(LinearModel(alpha=0.5), graph="knn", search=LamSearch(n_lams=1))
    model.fit(X, y, groups=groups)
    assert model.alpha_ == 0.5 and "alpha" not in model.lam_search_
    for bad in ([], [-1.0], [np.nan], 3.0):
        with pytest.raises(ValueError, match="alphas"):
            ConvexClusteredFLRegressor(search=LamSearch(alphas=bad)).fit(X, y, groups=groups)
    with pytest.raises(ValueError, match="alphas needs a linear"):
        GTV(Location(), search=LamSearch(alphas=[1.0]), graph="complete").fit(X, groups=groups)


def test_options_hold_in_the_search(few_folds):
    data = clusters(n_clients=6, n_clusters=2, n_features=2)
    options = {"penalty": "l2", "search": LamSearch(n_lams=2)}
    short = ConvexClusteredFLRegressor(graph="complete", max_iter=3, refit=False, **options)
    with pytest.warns(Warning, match="max_iter=3"):
        assert fit(short, data).n_iter_ <= 3
    model = ConvexClusteredFLRegressor(graph="knn", alpha=0.01, refit=False, **options)
    first, other = (fit(clone(model).set_params(random_state=seed), data) for seed in (None, 7))
    assert not np.isin(other.lam_search_["criterion"], first.lam_search_["criterion"]).any()


def test_large_complete_graphs_do_not_compete(monkeypatch, few_folds):
    monkeypatch.setattr("skcfl.estimators._base_fusion.MAX_COMPLETE", 8)
    data = clusters(n_clients=9)
    model = fit(ConvexClusteredFLRegressor(alpha=0.01, search=LamSearch(n_lams=2)), data)
    search = model.lam_search_
    kinds = set(zip(search["graph"].tolist(), search["penalty"].tolist(), strict=True))
    assert kinds == {("knn", "l2"), ("complete", "squared_l2")}
    # The neighbours of few clients are all others: there is no other graph for them.
    search = LamSearch(n_lams=2)
    few = ConvexClusteredFLRegressor(alpha=0.01, refit=True, search=search)
    assert set(fit(few, clusters(n_clients=5)).lam_search_["graph"]) == {"complete"}


def test_no_rows_to_hold_out():
    X, y, groups = continuum(rows=1, n_clients=6)
    with pytest.warns(UserWarning, match="no client has two"):
        model = ConvexClusteredFLRegressor(alpha=0.01).fit(X, y, groups=groups)
    assert model.n_clusters_ >= 1


def test_a_value_at_the_edge_of_those_given_is_told():
    X, y, groups = continuum(spread=0.0)
    options = {"graph": "complete", "penalty": "squared_l2", "alpha": 1e-3}
    cv = ConvexClusteredFLRegressor(search=LamSearch(cv=3, lams=[1e-4, 1e-3, 1e-2]), **options)
    with pytest.warns(UserWarning, match="largest of those tried"):
        cv.fit(X, y, groups=groups)
    assert cv.lam_ == 1e-2 and cv.cv_scores_.shape == (3, 3)


@pytest.mark.parametrize("slope", [1e-5, 30.0])
def test_no_edge_is_told_where_the_loss_has_levelled(slope):
    """A grid that grows ends somewhere; that is news only where the next value might be better."""

    def solve(problem, lam):
        return np.full((3, 1), 1.0 + slope / (1.0 + np.log1p(lam))), np.arange(3)

    search, best = searched(_Distance(), solve, np.geomspace(1.0, 100.0, 5))
    assert best.lam > 100.0
    assert (search.warning is None) == (slope < 1e-3)


# ---------------------------------------------------------------------------------- FPFC


@pytest.mark.parametrize("search", some([LamSearch(n_lams=2), None, LamSearch(cv=5)], 1))
def test_fpfc_holds_both_ends(search, few_folds):
    for spread in (0.0, 20.0):
        X, y, groups = continuum(spread=spread, n_clients=6, rows=20)
        model = FPFCRegressor(alpha=0.01, search=search).fit(X, y, groups=groups)
        assert model.n_clusters_ == (1 if spread == 0.0 else 6)
        tried = model.lam_search_
        assert tried["lam"].min() == 0.0
        assert tried["n_clusters"][tried["lam"].argmax()] == 1


def test_one_wild_client_is_no_stable_partition():
    """It is apart in every fold, whatever the others do."""

    def is_stable(*folds):
        return ModelSearch._partitions([np.array(labels) for labels in folds])[1]

    assert is_stable([0, 0, 1, 1], [0, 0, 1, 1])
    assert is_stable([0, 0, 1, 1, 2], [0, 0, 1, 1, 2])
    assert not is_stable([0, 0, 0, 1], [0, 0, 0, 1])
    assert not is_stable([0, 0, 1, 1], [0, 1, 1, 0])
    assert not is_stable([0, 1, 2, 3], [0, 1, 2, 3])
    assert not is_stable([0, 0, 0, 0], [0, 0, 0, 0])


def test_solutions_begin_at_those_of_the_nearest_values():
    """An exact one of two that are equally near; not one of another family or fold."""
    pool = SimpleNamespace(can_answer=lambda call: True, n_clients=4, n_params=3)
    folds = [FoldFits([], pool) for _ in range(2)]
    problem = SimpleNamespace(graph=chain_graph(4), d=3)

    class State:
        def __init__(self, labels=None, edges=True):
            self.labels, self.edges = labels, edges

        def without_edges(self):
            return State(self.labels, False)

    one, ten, hundred = State(), State(np.zeros(4, dtype=int)), State()
    for lam, state in ((1.0, one), (10.0, ten), (100.0, hundred)):
        folds[0].keep(0, 0.5, problem, lam, state)
    assert folds[0].start(0, 0.5, problem, 2.0, None) is one
    assert folds[0].start(0, 0.5, problem, np.sqrt(10.0), None) is ten
    assert folds[0].start(0, 0.5, problem, 10.0**1.5, None) is ten
    assert folds[0].start(0, 0.5, problem, 90.0, (95.0, one)) is one
    assert folds[0].start(1, 0.5, problem, 2.0, None) is None
    assert folds[1].start(0, 0.5, problem, 2.0, None) is None
    # Under another penalty that of the same value comes first, on the same graph with its flows.
    assert folds[0].start(0, 0.1, problem, 10.0, (9.0, one)) is ten
    assert folds[0].start(0, 0.1, problem, 11.0, None) is None
    other = SimpleNamespace(graph=complete_graph(4), d=3)
    found = folds[0].start(0, 0.1, other, 10.0, None)
    assert found.labels is ten.labels and not found.edges
    # Flows of large graphs are not kept, and what is no such state is not.
    problem.d = 10**7
    folds[1].keep(0, 0.5, problem, 1.0, one)
    assert not folds[1].start(0, 0.5, problem, 1.0, None).edges
    folds[1].keep(1, 0.5, problem, 1.0, (one, ten))
    assert folds[1].start(1, 0.5, problem, 1.0, None) is None
