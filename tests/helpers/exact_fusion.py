"""Fusion of points on a line in rational arithmetic: the reference that knows no rounding."""

from fractions import Fraction
from math import lcm

import numpy as np


def exact_flow_value(graph, b):
    """Least ``max_e |u_e| / w_e`` over flows of outflow b, rational numbers: the best cut."""
    n, best = graph.n_nodes, Fraction(0)
    edges = [
        (int(i), int(j), Fraction(float(w)))
        for i, j, w in zip(graph.heads, graph.tails, graph.weights, strict=True)
    ]
    for code in range(1, 2 ** (n - 1)):  # the last node is outside: a cut is that of either side
        work = sum(b[i] for i in range(n) if code >> i & 1)
        across = sum(w for i, j, w in edges if (code >> i ^ code >> j) & 1)
        best = max(best, abs(work) / across)
    return best


class ExactLine:
    """``sum_i c_i (x_i - a_i)^2 / 2 + lam sum_e w_e |x_i - x_j|`` in rational arithmetic.

    By decomposition: a set of nodes has one value, the mean of its pulls, unless some of them
    want more than the edges to the others can hold back; then they have more, and the others less.

    Parameters
    ----------
    a, c : list of Fraction
        Points and curvatures.
    graph : Graph
        A small graph.
    lam : float
        Weight of the penalty.
    """

    def __init__(self, a, c, graph, lam):
        self.a, self.c, self.n = a, c, len(a)
        self.pairs = list(zip(graph.heads.tolist(), graph.tails.tolist(), strict=True))
        self.holds = [Fraction(float(lam)) * Fraction(float(w)) for w in graph.weights]
        # All numbers as multiples of one: sums of integers are fast.
        pulls = [x * y for x, y in zip(a, c, strict=True)]
        unit = 1
        for value in [*pulls, *c, *self.holds]:
            unit = lcm(unit, value.denominator)
        self._hold = [int(value * unit) for value in self.holds]
        self._c = [int(value * unit) for value in c]
        self.x = [None] * self.n
        self._solve(list(range(self.n)), {i: int(p * unit) for i, p in enumerate(pulls)})
        self.labels = self._clusters()
        self.value = self.objective(self.x)

    def _solve(self, nodes, pulls):
        total, mass = sum(pulls[i] for i in nodes), sum(self._c[i] for i in nodes)
        # What every node wants beyond the mean, times the mass.
        want = [pulls[i] * mass - self._c[i] * total for i in nodes]
        place = {i: k for k, i in enumerate(nodes)}
        edges = [
            (place[i], place[j], hold * mass)
            for (i, j), hold in zip(self.pairs, self._hold, strict=True)
            if i in place and j in place
        ]
        most, which = 0, 0
        for code in range(1, 2 ** len(nodes) - 1):
            excess = sum(want[k] for k in range(len(nodes)) if code >> k & 1)
            if excess > most:
                excess -= sum(hold for k, m, hold in edges if (code >> k ^ code >> m) & 1)
                if excess > most:
                    most, which = excess, code
        if not which:
            for i in nodes:
                self.x[i] = Fraction(total, mass)
            return
        upper = [i for k, i in enumerate(nodes) if which >> k & 1]
        lower = [i for k, i in enumerate(nodes) if not which >> k & 1]
        above, below = {i: pulls[i] for i in upper}, {i: pulls[i] for i in lower}
        for (i, j), hold in zip(self.pairs, self._hold, strict=True):
            for k, m in ((i, j), (j, i)):
                if k in above and m in below:
                    above[k] -= hold
                    below[m] += hold
        self._solve(upper, above)
        self._solve(lower, below)

    def _clusters(self):
        """Nodes of equal value that paths of such nodes join, by their first members."""
        labels = list(range(self.n))
        for _ in range(self.n):
            for i, j in self.pairs:
                if self.x[i] == self.x[j]:
                    labels[i] = labels[j] = min(labels[i], labels[j])
        return np.unique(labels, return_inverse=True)[1]

    def objective(self, x):
        """The objective, exactly, at rational or floating-point models."""
        x = [Fraction(value) for value in x]
        value = sum(c * (y - a) ** 2 / 2 for c, y, a in zip(self.c, x, self.a, strict=True))
        moves = zip(self.pairs, self.holds, strict=True)
        return value + sum(hold * abs(x[i] - x[j]) for (i, j), hold in moves)

    def distinct(self):
        """Whether different clusters have different values, also where no edge joins them."""
        return len(set(self.x)) == self.labels.max() + 1
