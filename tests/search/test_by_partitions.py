"""The choice of lam by partitions: which of equal values is taken."""

from types import SimpleNamespace

import numpy as np
import pytest

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
    assert search.record()["n_clusters"].tolist() == [4] + [
        len(np.unique(labels_at(lam))) for lam in lams
    ]
