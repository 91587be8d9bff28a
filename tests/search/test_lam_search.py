"""Options of the choice of lam: objects of scikit-learn, checked together, and what they do."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from trials import some

from skcfl import ConvexClusteredFLRegressor, FPFCRegressor, GTVRegressor, LamSearch
from skcfl.datasets import make_clustered_regression
from skcfl.model_selection import ClientKFold
from skcfl.search.candidates import Member
from skcfl.search.simplest import CONFIRMATIONS, Choice

DATA = make_clustered_regression(8, 2, 3, n_samples=20, random_state=0)
CLASSES = [ConvexClusteredFLRegressor, GTVRegressor, FPFCRegressor]


def fit(model):
    return model.fit(DATA.X, DATA.y, groups=DATA.groups)


@pytest.mark.parametrize("cls", [GTVRegressor, FPFCRegressor])
def test_options_are_parameters_of_the_estimator(cls):
    model = clone(cls(search=LamSearch(cv=KFold(3), lams=[0.1])))
    assert model.get_params()["search__cv"].n_splits == 3
    assert "search=LamSearch(cv=KFold(" in repr(model).replace("\n", "").replace(" ", "")
    model = cls().set_params(search__criterion="bic")
    assert model.search.criterion == "bic" and cls().search is None
    with pytest.raises(ValueError, match="Invalid parameter 'folds'"):
        cls().set_params(search__folds=3)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"criterion": "aic"}, "'criterion' parameter of LamSearch"),
        ({"criterion": "bic", "cv": 3}, "cv of LamSearch must be None with criterion='bic'"),
        ({"criterion": "bic", "alphas": [1.0]}, "alphas of LamSearch must be None with crit"),
        ({"scoring": "r2"}, "scoring of LamSearch must be None with cv=None"),
        ({"lams": [1.0], "n_lams": 3}, "n_lams of LamSearch must be 'auto' with lams"),
        ({"lams": [1.0], "lam_min_ratio": 0.1}, "lam_min_ratio of LamSearch must be None with"),
        ({"lams": [-1.0]}, "lams must be a sequence of finite numbers"),
        ({"alphas": [[1.0]]}, "alphas must be a sequence of finite numbers"),
        ({"lams": [1e300]}, "lams must not be larger"),
    ],
)
@pytest.mark.parametrize("cls", CLASSES)
def test_what_makes_no_sense_is_refused(cls, options, words):
    with pytest.raises(ValueError, match=words):
        fit(cls(search=LamSearch(**options)))


HOW = [(cls, ["held_out", "bic"][k % 2]) for k, cls in enumerate(CLASSES)]
HOW += [(cls, ["bic", "held_out"][k % 2]) for k, cls in enumerate(CLASSES)]


@pytest.mark.parametrize(("cls", "criterion"), some(HOW, 2))
def test_given_values_are_all_that_is_tried(cls, criterion):
    lams = [0.01, 0.1, 100.0]
    model = fit(cls(alpha=0.01, refit=True, search=LamSearch(criterion, lams=lams)))
    tried = set(model.lam_search_["lam"].tolist())
    assert tried - {0.0} == set(lams) and model.lam_ in tried
    assert not hasattr(model, "cv_scores_")


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("cls", some(CLASSES[1:], 1))
def test_number_and_ratio_of_the_values(cls):
    family = {"graph": "knn", "penalty": "l2", "refit": False}
    model = cls(alpha=0.01, max_iter=5, **({} if cls is FPFCRegressor else family))

    def tried(**options):
        return fit(model.set_params(search=LamSearch(**options))).lam_search_["lam"]

    lams, few = tried(n_lams=2, lam_min_ratio=1e-2), tried(n_lams=2)
    if cls is not FPFCRegressor:
        assert len(set(lams)) < len(set(tried(n_lams=4, lam_min_ratio=1e-2)))
    assert lams[lams > 0].min() != few[few > 0].min()


@pytest.mark.parametrize("cls", [GTVRegressor, FPFCRegressor])
def test_a_single_client_has_nothing_to_choose(cls):
    rows = DATA.groups == DATA.groups[0]
    X, y, groups = DATA.X[rows], DATA.y[rows], DATA.groups[rows]
    plain = cls().fit(X, y, groups=groups)
    for cv in (4, KFold(4)):
        model = cls(search=LamSearch(cv=cv)).fit(X, y, groups=groups)
        assert np.isnan(model.cv_scores_).all() and model.cv_scores_.shape == (4, 1)
        assert_array_equal(model.params_, plain.params_)
    assert not hasattr(plain, "cv_scores_") and plain.lam_ == 0.0


def test_searches_over_options_and_objects():
    X = np.column_stack([DATA.X, np.unique(DATA.groups, return_inverse=True)[1]])
    grid = {"search": [LamSearch("bic"), LamSearch(lams=[0.1])], "search__lams": [[0.1], [0.2]]}
    one = {"group_col": -1, "graph": "complete", "penalty": "l2", "alpha": 0.01}
    model = ConvexClusteredFLRegressor(refit=True, **one)
    cv = ClientKFold(2, group_col=-1, random_state=0)
    found = GridSearchCV(model, grid, cv=cv, error_score="raise").fit(X, DATA.y)
    assert found.best_estimator_.search.lams == found.best_params_["search__lams"]


def test_refitted_models_far_behind_are_not_fitted_to_all_rows(monkeypatch):
    """Clients have fewer rows than parameters, so that models of small clusters are useless."""
    rng, tried = np.random.RandomState(0), []
    groups = np.repeat(np.arange(40), 3)
    X = rng.standard_normal((len(groups), 8))
    y = np.einsum("rj,rj->r", X, rng.standard_normal((3, 8))[groups % 3])
    monkeypatch.setattr(Choice, "_confirm", lambda self, member: tried.append(member))
    search = GTVRegressor(search=LamSearch(n_lams=4)).fit(X, y, groups=groups).lam_search_
    assert search["refit"].any()
    assert search["criterion"][search["refit"]].min() > 1.3 * search["criterion"].min()
    assert not tried


def test_members_between_known_partitions_of_all_rows_are_not_fitted_to_them():
    """Above lam = 1 there are two clusters, below it all clients are separate."""
    tried = []

    def partition(family, alpha, lam):
        tried.append(lam)
        return np.arange(40) % (2 if lam > 1.0 else 40)

    family, whole = SimpleNamespace(grows=True), SimpleNamespace(partition=partition)
    choice = Choice([family], np.ones(1), None, True, whole)
    members = [Member(0, None, lam, True, np.zeros(1), (10,)) for lam in (1.3, 1.5, 0.8, 1.4)]
    assert choice.confirmed_member(members[0]) is None
    first = len(tried)
    assert [choice.confirmed_member(member) for member in members[1:]] == [None] * 3
    assert first == CONFIRMATIONS and len(tried) < first + CONFIRMATIONS
    other = Member(0, 0.1, 1.3, True, np.zeros(1), (2,))
    assert choice.confirmed_member(other).lam == 1.3 and tried[-1] == 1.3
