"""Fusion of points on a line in rational arithmetic: the reference that knows no rounding."""

from fractions import Fraction
from math import lcm

import numpy as np


def exact(values):
    """Floating-point numbers as an array of rational ones."""
    return np.vectorize(lambda value: Fraction(float(value)), otypes=[object])(values)


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
        self.holds = [Fraction(float(lam)) * Fraction(w) for w in graph.weights]
        # All numbers as multiples of one: sums of integers are fast.
        pulls = [x * y for x, y in zip(a, c, strict=True)]
        unit = 1
        for value in [*pulls, *c, *self.holds]:
            unit = lcm(unit, value.denominator)
        self._hold = [int(value * unit) for value in self.holds]
        self._c = [int(value * unit) for value in c]
        self.x = [None] * self.n
        self._solve(list(range(self.n)), {i: int(p * unit) for i, p in enumerate(pulls)})
        self.models = np.array(self.x, dtype=float)[:, None]
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


def exact_solution(A, b):
    """Solution of a regular system of rational numbers, by elimination."""
    n = len(b)
    rows = [[*row, value] for row, value in zip(A, b, strict=True)]
    for k in range(n):
        pivot = next(i for i in range(k, n) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(n):
            if i != k and rows[i][k] != 0:
                factor = rows[i][k] / rows[k][k]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k], strict=True)]
    return [rows[k][n] / rows[k][k] for k in range(n)]


def is_positive(A):
    """Whether a symmetric matrix of rational numbers has no negative eigenvalue."""
    rows, n = [list(row) for row in A], len(A)
    for k in range(n):
        if rows[k][k] <= 0:
            if rows[k][k] < 0 or any(rows[k]):
                return False
            continue
        for i in range(k + 1, n):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [x - factor * y for x, y in zip(rows[i], rows[k], strict=True)]
    return True


def exact_edges(graph):
    """Edges with rational weights."""
    ends = zip(graph.heads.tolist(), graph.tails.tolist(), strict=True)
    return [(i, j, Fraction(float(w))) for (i, j), w in zip(ends, graph.weights, strict=True)]


def laplacian_potentials(graph, labels, b):
    """Potentials of the flow of least energy of outflow b (n,) within clusters.

    Each cluster is connected by its own edges, over which b sums to zero.
    """
    n = graph.n_nodes
    L = [[Fraction(0)] * n for _ in range(n)]
    for i, j, w in exact_edges(graph):
        if labels[i] == labels[j]:
            L[i][i] += w
            L[j][j] += w
            L[i][j] -= w
            L[j][i] -= w
    held = np.unique(labels, return_index=True)[1]
    for i in held:
        L[i] = [Fraction(int(i == j)) for j in range(n)]
    return exact_solution(L, [Fraction(0) if i in held else b[i] for i in range(n)])


def exact_energy_value(graph, labels, b):
    """Largest ``|u_e| / w_e`` of that flow."""
    p = laplacian_potentials(graph, labels, b)
    inner = [(i, j) for i, j, _ in exact_edges(graph) if labels[i] == labels[j]]
    return max((abs(p[i] - p[j]) for i, j in inner), default=Fraction(0))


class ExactRecovery:
    """Theorems 1 and 2 for clusters of clients ``c_i (x - a_i)^2 / 2``, in rational arithmetic.

    Parameters
    ----------
    a, c : list of Fraction
        Points and curvatures.
    graph : Graph
        A small graph.
    labels : ndarray
        The partition, 0..K-1.
    lam : float
        Weight of the penalty.

    Attributes
    ----------
    distinct : bool
        Whether the models of clusters differ.
    lower, upper : Fraction or float
        The theorems' bounds; infinite where they ask for anything, or for nothing.
    """

    def __init__(self, a, c, graph, labels, lam):
        n, K = len(a), int(labels.max()) + 1
        edges, members = exact_edges(graph), [np.flatnonzero(labels == k) for k in range(K)]
        mass = [sum(c[i] for i in mine) for mine in members]
        centre = [
            sum(c[i] * a[i] for i in mine) / total
            for mine, total in zip(members, mass, strict=True)
        ]
        joined = _Joined(labels, edges, K)
        w = ExactLine(centre, mass, joined, lam).x
        self.distinct = len(set(w)) == K
        pull, q = [Fraction(0)] * K, []
        for i in range(n):
            q.append(c[i] * (w[labels[i]] - a[i]))
        for i, j, weight in edges:
            k, m = labels[i], labels[j]
            if k != m:
                pull[k] += weight
                pull[m] += weight
                turn = Fraction(lam) * weight * (1 if w[k] > w[m] else -1)
                q[i] += turn
                q[j] -= turn
        pull = [x / len(mine) for x, mine in zip(pull, members, strict=True)]
        self.lower = None
        if self.distinct:
            connected = (graph.inside(labels).components().max() + 1) == K
            minus = [-value for value in q]
            self.lower = exact_energy_value(graph, labels, minus) if connected else np.inf
        self.upper = np.inf
        for k in range(K):
            mean = [sum(c[i] * (w[k] - a[i]) for i in mine) / len(mine) for mine in members]
            for m in range(K):
                away, price = abs(mean[m] - mean[k]), pull[m] + pull[k]
                if m != k and (price > 0 or away == 0):
                    self.upper = min(self.upper, away / price if price > 0 else Fraction(0))

    def holds(self, lam):
        """Whether `lam` is in the interval."""
        return self.distinct and self.lower <= Fraction(lam) < self.upper


class _Joined:
    """Graph of clusters with the sums of weights between them, exact."""

    def __init__(self, labels, edges, K):
        total = {}
        for i, j, w in edges:
            k, m = sorted((int(labels[i]), int(labels[j])))
            if k != m:
                total[k, m] = total.get((k, m), 0) + w
        self.heads = np.array([k for k, _ in total], dtype=int)
        self.tails = np.array([m for _, m in total], dtype=int)
        self.weights, self.n_nodes = list(total.values()), K


def exactly_well_connected(graph, labels, lam, delta, alpha, beta):
    """(35) for every node i_0 and every set, cluster by cluster, in rational arithmetic."""
    edges, answers = exact_edges(graph), []
    outer = [Fraction(0)] * graph.n_nodes
    for i, j, w in edges:
        if labels[i] != labels[j]:
            outer[i] += w
            outer[j] += w
    for k in range(int(labels.max()) + 1):
        mine = np.flatnonzero(labels == k).tolist()
        inner = [(i, j, w) for i, j, w in edges if labels[i] == labels[j] == k]
        boundary = sum(outer[i] for i in mine)
        demand = {}
        for i in mine:
            pull = Fraction(0)
            if boundary > 0 and beta[i] > 0:
                endless = alpha[k] == 0 or np.isinf(beta[i])
                pull = np.inf if endless else Fraction(beta[i]) / Fraction(alpha[k]) * boundary
            need = np.inf if np.isinf(delta[i]) else Fraction(delta[i]) / Fraction(lam)
            demand[i] = np.inf if np.inf in (pull, need) else outer[i] + pull + need
        sources = set(mine)
        for code in range(1, 2 ** len(mine) - 1):
            S = {i for k, i in enumerate(mine) if code >> k & 1}
            across = sum(w for i, j, w in inner if (i in S) ^ (j in S))
            if not sum(demand[i] for i in S) < across:
                sources &= S
        answers.append(bool(sources))
    return answers
