"""The choice of lam by partitions: which of equal values is taken."""

from types import SimpleNamespace

import numpy as np
import pytest

from skcfl import ConvexClusteredFLRegressor, FPFCRegressor, LamSearch
from skcfl.datasets import make_clustered_regression
from skcfl.federation.result import Result
from skcfl.search import by_partitions
from skcfl.search.by_partitions import GridSearch

# Criteria by number of clusters: two are best.
CRITERIA = {4: 5.0, 2: 1.0, 1: 3.0}


def labels_at(lam):
    """Clusters of four clients at a lam."""
    return np.arange(4) if lam < 0.5 else np.array([0, 0, 1, 1]) if lam < 4.0 else np.zeros(4, int)


@pytest.mark.parametrize(
    ("lams", "best"), [([0.1, 0.6, 1.0, 3.0, 9.0], 1.0), ([0.1, 0.2, 3.9, 9.0], 3.9)]
)
def test_the_middle_of_equal_values_is_taken(monkeypatch, lams, best):
    monkeypatch.setattr(
        by_partitions,
        "PartitionCriterion",
        lambda problem: lambda labels: CRITERIA[len(np.unique(labels))],
    )

    def solve(lam):
        return Result(np.zeros((4, 1)), labels_at(lam), extra={"lam": lam}), None

    search = GridSearch(SimpleNamespace(n=4), solve)
    lam, result = search.run(np.array(lams), grows=False)
    assert lam == result.extra["lam"] == best
    numbers = [len(np.unique(labels_at(lam))) for lam in lams]
    assert search.record()["n_clusters"].tolist() == numbers


def test_targets_far_from_zero_have_as_many_clusters(offset=3e6):
    """Losses are compared with those of one model for all, which are not of the offset's size."""
    data = make_clustered_regression(12, 3, 4, noise=0.5, random_state=0)
    for cls in (ConvexClusteredFLRegressor, FPFCRegressor):
        model = cls(search=LamSearch("bic"), random_state=0)
        assert model.fit(data.X, data.y + offset, groups=data.groups).n_clusters_ == 3
    amounts = ConvexClusteredFLRegressor(loss="gamma", search=LamSearch("bic"))
    amounts.fit(data.X, np.exp(data.y / 4) * (1 + offset**2), groups=data.groups)
    assert amounts.n_clusters_ == 3


@pytest.mark.parametrize("cls", [ConvexClusteredFLRegressor, FPFCRegressor])
def test_zero_is_tried_only_where_it_is_given(cls):
    data = make_clustered_regression(6, 2, 3, random_state=0)
    lams = np.array([0.01, 0.1, 1.0])
    model = cls(search=LamSearch("bic", lams=lams)).fit(data.X, data.y, groups=data.groups)
    assert model.lam_ in lams and np.isin(model.lam_search_["lam"], lams).all()
