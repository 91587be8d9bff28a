"""What does not fit in memory is refused before it is allocated, in words."""

import numpy as np
import pytest
from scipy import sparse

from skcfl import FPFC, IFCA, ConvexClusteredFL, ConvexClustering
from skcfl.clients.blocks import make_blocks
from skcfl.exceptions import NotEnoughMemoryError
from skcfl.graphs import complete_graph, distance_graph, from_adjacency
from skcfl.inspection import cluster_stability
from skcfl.models import LinearModel
from skcfl.numerics import memory


@pytest.fixture
def small(monkeypatch):
    """Set how many bytes are available."""
    monkeypatch.setattr(memory, "SMALL", 0)
    return lambda number: monkeypatch.setattr(memory, "available", lambda: number)


def test_the_machine_says_how_much_there_is():
    assert 2**20 < memory.available() < 2**50


def test_limits_of_the_machine_and_of_control_groups(monkeypatch):
    numbers = {}
    monkeypatch.setattr(memory, "_meminfo", lambda: 1000)
    monkeypatch.setattr(memory, "_number", lambda path: numbers.get(path.name))
    assert memory.available() == 1000
    numbers.update({"memory.max": 700, "memory.current": 300})
    assert memory.available() == 400
    numbers["memory.current"] = 800
    assert memory.available() == 0


def test_the_error_says_what_is_needed_what_there_is_and_what_fits(small):
    small(3_000_000)
    with pytest.raises(NotEnoughMemoryError, match=r"Things need 4 MB of memory, and 3 MB are"):
        memory.require(4_000_000, "Things", "Take less.")
    with pytest.raises(MemoryError, match="3000000 would do"):
        memory.require(4_000_000, "Things", lambda there: f"{there} would do.")
    memory.require(3_000_000, "Things", "Take less.")


def rows(n_clients, d=3, seed=0):
    rng = np.random.RandomState(seed)
    groups = np.repeat(np.arange(n_clients), 4)
    return rng.standard_normal((len(groups), d)), rng.standard_normal(len(groups)), groups


ONES = np.ones((20, 20))
LINEAR = LinearModel("squared_error")


@pytest.mark.parametrize("solver", ["admm", "primal_dual", "pdmm"])
def test_complete_graphs(small, solver):
    X, y, groups = rows(30)
    model = ConvexClusteredFL(LINEAR, lam=0.01, graph="complete", solver=solver)
    small(435 * 4 * 8 - 1)
    with pytest.raises(NotEnoughMemoryError, match=r"435 edges of 30 nodes.*knn") as raised:
        model.fit(X, y, groups=groups)
    assert "nodes would fit with all pairs" in str(raised.value)
    assert not hasattr(model, "labels_")
    small(10**7)
    model.fit(X, y, groups=groups)


@pytest.mark.parametrize(
    ("number", "call", "message"),
    [
        (
            10_000,
            lambda: ConvexClustering(0.1, graph="complete").fit(rows(10)[0]),
            "780 edges of 40",
        ),
        (
            2 * 435 * 4 * 8 - 1,
            lambda: FPFC(LINEAR, lam=0.1).fit(*rows(30)),
            "435 edges of 30 nodes, with 2 times",
        ),
        (
            32 * 900 - 1,
            lambda: cluster_stability(IFCA(LINEAR, n_clusters=2), *rows(30)),
            "pairs of 30 clients.*drawn at random",
        ),
        (1000, lambda: from_adjacency(ONES), "400 weights of A as a list.*complete_graph"),
        (1000, lambda: distance_graph(ONES), "distances of 20 nodes.*knn_graph"),
        (1000, lambda: complete_graph(20).heads, "ends of the edges of a complete graph of 20"),
        (1000, lambda: complete_graph(20).between(np.arange(20), 20), "all pairs of 20 clusters"),
    ],
)
def test_other_large_arrays(small, number, call, message):
    small(number)
    with pytest.raises(NotEnoughMemoryError, match=message):
        call()


def test_dense_copies_of_sparse_rows(small):
    X = sparse.random_array((10, 50), density=0.1, format="csr", rng=0)
    (block,) = make_blocks(X, np.zeros((10, 1)), np.ones(10), np.repeat([0, 1], 5), 2)
    assert block.dense().shape == (2, 5, 50)
    small(10 * 50 * 8 - 1)
    with pytest.raises(NotEnoughMemoryError, match="10 sparse rows of 50 columns.*first order"):
        block.dense()
