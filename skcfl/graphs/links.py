"""Shortest links between groups of points: what a minimum spanning tree adds to their graph."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

from .._typing import Array
from ..numerics.by_cluster import components_of
from ..numerics.once import once

# Points up to which a group is looked up in one tree of all points, where that many neighbours
# and one more are bound to hold a point of another group.
FEW = 32
# Points with distances that give a first bound; most others need no look then.
SAMPLE = 256


def shortest_links(points: Array, labels: Array) -> Array:
    """Pairs that join groups of points: the links of a minimum spanning tree (Boruvka 1926).

    Parameters
    ----------
    points : ndarray of shape (n, n_coordinates)
        Positions of the points.
    labels : ndarray of shape (n,)
        Group of each point, 0..K-1.

    Returns
    -------
    heads, tails : ndarray of shape (n_links,)
        Ends of the links, ``heads < tails``.
    """
    links, labels = [np.empty((2, 0), dtype=np.intp)], labels.astype(np.intp)
    while (K := int(labels.max()) + 1) > 1:
        ends = _nearest_outside(points, labels, np.bincount(labels))
        links.append(ends)
        heads, tails = labels[ends]
        labels = components_of(heads, tails, K).astype(np.intp)[labels]
    return np.unique(np.sort(np.concatenate(links, axis=1), axis=0), axis=1)


def _nearest_outside(points: Array, labels: Array, sizes: Array) -> Array:
    """The shortest link of each group but the largest, which waits for the others to come to it.

    Returns pairs of points, (2, K - 1).
    """
    K = len(sizes)
    asked = np.arange(K) != np.argmax(sizes)
    best, ends = np.full(K, np.inf), np.full((2, K), -1, dtype=np.intp)
    order = np.argsort(labels, kind="stable")
    starts = np.cumsum(sizes) - sizes
    few = asked & (sizes <= FEW)
    if few.any():
        tree = cKDTree(points)
        for size in np.unique(sizes[few]):
            mine = np.flatnonzero((few & (sizes == size))[labels])
            distance, near = tree.query(points[mine], size + 1)
            # The nearest that is of another group; there is one.
            first = (labels[near] != labels[mine][:, None]).argmax(axis=1)[:, None]
            distance = np.take_along_axis(distance, first, axis=1)[:, 0]
            near = np.take_along_axis(near, first, axis=1)[:, 0]
            _keep(best, ends, labels[mine], distance, mine, near)
    large = np.flatnonzero(sizes > FEW)
    if (asked & ~few).any():
        groups = [_Group(points, order[starts[k] : starts[k] + sizes[k]]) for k in large]
        rest = np.flatnonzero((sizes <= FEW)[labels])
        if len(rest):
            groups.append(_Group(points, rest))
        low, high = np.array([g.low for g in groups]), np.array([g.high for g in groups])
        for a, k in enumerate(large):
            if not asked[k]:
                continue
            gaps = np.maximum(np.maximum(low - high[a], low[a] - high), 0.0)
            gaps = np.linalg.norm(gaps, axis=1)
            # The points of small groups, which lie everywhere, come last.
            turns = np.argsort(gaps + np.where(np.arange(len(groups)) < len(large), 0.0, np.inf))
            for b in turns:
                if b == a or gaps[b] >= best[k]:
                    continue
                found = groups[a].nearest(groups[b], best[k])
                if found[0] < best[k]:
                    best[k], ends[:, k] = found[0], found[1:]
    return ends[:, asked]


def _keep(
    best: Array, ends: Array, group: Array, distance: Array, mine: Array, others: Array
) -> None:
    """Remember the shortest link of each group."""
    order = np.lexsort((mine, distance, group))
    group, first = np.unique(group[order], return_index=True)
    chosen = order[first]
    best[group], ends[:, group] = distance[chosen], (mine[chosen], others[chosen])


class _Group:
    """Some points, their box, and a tree of them if one is needed."""

    def __init__(self, points: Array, index: Array) -> None:
        self.points, self.index = points[index], index
        self.low, self.high = self.points.min(axis=0), self.points.max(axis=0)

    @once
    def tree(self) -> cKDTree:
        """For looking up neighbours."""
        return cKDTree(self.points)

    def nearest(self, other: _Group, limit: float) -> tuple[float, int, int]:
        """Distance, at most `limit`, and ends of the shortest link to `other`, -1 for none."""
        mine, theirs = self._within(other, limit), other._within(self, limit)
        if len(mine[0]) <= len(theirs[0]):
            return _look_up(self, other, *mine, limit)
        distance, i, j = _look_up(other, self, *theirs, limit)
        return distance, j, i

    def _within(self, other: _Group, limit: float) -> tuple[Array, Array]:
        """Points with a distance to the box of `other` below `limit`, the nearest first."""
        away = np.maximum(np.maximum(other.low - self.points, self.points - other.high), 0.0)
        away = np.sqrt(np.einsum("nd,nd->n", away, away))
        near = np.flatnonzero(away < limit)
        return near, away[near]


def _look_up(
    some: _Group, others: _Group, near: Array, away: Array, limit: float
) -> tuple[float, int, int]:
    """The shortest link from the points `near` of `some` to `others`."""
    best = limit, -1, -1
    if len(near) > SAMPLE:
        front = np.argpartition(away, SAMPLE)
        near, away = near[front], away[front]
    for part in slice(0, SAMPLE), slice(SAMPLE, None):
        mine = near[part][away[part] < best[0]]
        if not len(mine):
            continue
        distance, index = others.tree.query(some.points[mine], distance_upper_bound=best[0])
        k = int(np.argmin(distance))
        if distance[k] < best[0]:
            best = float(distance[k]), int(some.index[mine[k]]), int(others.index[index[k]])
    return best
