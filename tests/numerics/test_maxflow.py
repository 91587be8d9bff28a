"""Flows of numbers and cuts, against all cuts of small graphs."""

import numpy as np
import pytest
from fusion_problems import GRAPHS, make_graph
from hypothesis import assume, given
from hypothesis import strategies as st
from trials import examples

from skcfl.numerics.maxflow import carry, largest_cut

connected = st.sampled_from([kind for kind in GRAPHS if kind != "disconnected"])
seeds = st.integers(0, 2**31)


def draw(kind, seed):
    """A connected graph and outflows over many orders of magnitude."""
    rng = np.random.RandomState(seed % 2**32)
    graph = make_graph(rng, rng.randint(2, 10), kind)
    assume(graph.components().max() == 0)
    b = rng.standard_normal(graph.n_nodes) * 10.0 ** rng.uniform(-6, 0, graph.n_nodes)
    b *= 10.0 ** rng.uniform(-9, 9)
    return graph, b - b.mean()


def cuts(graph):
    """All sets of nodes but none and all."""
    for code in range(1, 2**graph.n_nodes - 1):
        yield (code >> np.arange(graph.n_nodes) & 1).astype(bool)


def across(graph, side, values):
    return values[side[graph.heads] != side[graph.tails]].sum()


@examples(15)
@given(connected, seeds)
def test_largest_cut_is_the_best_of_all(kind, seed):
    graph, b = draw(kind, seed)
    ratio, side, _ = largest_cut(graph.heads, graph.tails, graph.weights, b)
    best = max(b[each].sum() / across(graph, each, graph.weights) for each in cuts(graph))
    assert ratio == pytest.approx(best, rel=1e-9)
    assert b[side].sum() / across(graph, side, graph.weights) == pytest.approx(ratio)


@examples(15)
@given(connected, seeds, st.sampled_from([0.3, 0.9, 0.999999, 1.000001, 1.1, 5.0]))
def test_carry_finds_a_flow_or_the_set_that_prevents_it(kind, seed, share):
    graph, b = draw(kind, seed)
    ratio, *_ = largest_cut(graph.heads, graph.tails, graph.weights, b)
    capacities = share * ratio * graph.weights
    flow, missing, blocked = carry(graph.heads, graph.tails, capacities, b)
    assert (np.abs(flow) <= capacities * (1 + 1e-15)).all()
    np.testing.assert_allclose(
        graph.divergence(flow[:, None])[:, 0] + missing, b, atol=1e-12 * np.abs(b).max()
    )
    if share > 1:
        assert not blocked.any()
        assert np.abs(missing).max() <= 1e-12 * np.abs(b).max()
    else:
        # It takes in less than it should, however full the edges around it are.
        assert -b[blocked].sum() > across(graph, blocked, capacities)
        smaller = [
            each for each in cuts(graph) if (each <= blocked).all() and each.sum() < blocked.sum()
        ]
        lack = -b[blocked].sum() - across(graph, blocked, capacities)
        for each in smaller:
            assert -b[each].sum() - across(graph, each, capacities) <= lack * (1 + 1e-6)


def test_nothing_to_carry_and_nothing_to_carry_it():
    ends = np.array([0]), np.array([1])
    flow, missing, blocked = carry(*ends, np.ones(1), np.zeros(2))
    assert flow.tolist() == [0.0] and not missing.any() and not blocked.any()
    none = np.empty(0, dtype=int)
    _, missing, blocked = carry(none, none, np.empty(0), np.array([1.0, -1.0]))
    assert missing.tolist() == [1.0, -1.0] and blocked.tolist() == [False, True]
    assert largest_cut(*ends, np.ones(1), np.zeros(2))[0] == 0.0
