"""Fusion problems of points on a line, drawn for whatever makes rounding matter.

Weights from 1e-15 to 1e15, tiny and huge scales, ties, duplicates; the exact points go with them.
"""

from fractions import Fraction

import numpy as np

from skcfl.federation.inprocess import open_rows
from skcfl.fusion.problem import FusionProblem
from skcfl.graphs import Graph, complete_graph
from skcfl.models import Location
from skcfl.penalties import L2


class Tally:
    """Answers counted, the wrong ones named."""

    def __init__(self):
        self.cases = self.undecided = self.clean = self.clean_undecided = 0
        self.wrong = []

    def note(self, answer, truth, clean, about):
        """One answer; `truth` None where either is right."""
        self.cases += 1
        self.clean += clean
        if answer is None:
            self.undecided += 1
            self.clean_undecided += clean
        elif truth is not None and answer is not truth:
            self.wrong.append((about, answer))

    def check(self, cases, share=0.05):
        """No answer is wrong, few are missing, and there were enough questions."""
        assert not self.wrong, f"{len(self.wrong)} of {self.cases}: {self.wrong[:5]}"
        assert self.cases >= cases, self.cases
        assert self.clean_undecided <= share * self.clean, (self.clean_undecided, self.clean)


def draw_graph(rng, n, kind):
    """A path, tree, ring, random or complete graph, or two of them; weights by kind of trial."""
    shape = rng.choice(["path", "tree", "ring", "random", "complete", "two"])
    if shape == "complete" and kind != "mixed":
        return complete_graph(n, draw_weights(rng, 1, kind)[0])
    pairs = {(i, i + 1) for i in range(n - 1)}
    if shape == "tree":
        pairs = {(rng.randint(i), i) for i in range(1, n)}
    elif shape == "ring" and n > 2:
        pairs.add((0, n - 1))
    elif shape in ("random", "complete"):
        share = 1.0 if shape == "complete" else 0.5
        pairs |= {(i, j) for j in range(n) for i in range(j) if rng.uniform() < share}
    elif shape == "two" and n > 2:
        pairs.discard((n // 2 - 1, n // 2))
    heads, tails = np.array(sorted(pairs)).T
    return Graph(n, heads, tails, draw_weights(rng, len(heads), kind))


def draw_labels(rng, n, most=None):
    """Labels 0..K-1 of a random partition into at most so many clusters."""
    most = 1 + rng.randint(n) if most is None else most
    return np.unique(rng.randint(most, size=n), return_inverse=True)[1]


def chain(weights):
    """A path with these weights."""
    every = np.arange(len(weights))
    return Graph(len(weights) + 1, every, every + 1, weights)


def draw_weights(rng, size, kind):
    if kind in ("plain", "near", "scales"):
        return rng.uniform(0.2, 2.0, size)
    if kind == "ties":
        return rng.randint(1, 4, size).astype(float)
    w = rng.uniform(0.5, 2.0, size)
    if kind == "light":
        w[rng.randint(size)] *= 10.0 ** rng.uniform(-15, -6)
        return w
    return 10.0 ** rng.uniform(-15, 15, size)


def draw_points(rng, n, kind):
    """Rows of clients, one to three each: list of arrays of floats."""
    if kind == "ties":
        return [np.array([float(rng.randint(-3, 4))]) for _ in range(n)]
    scale = 10.0 ** rng.uniform(-12, 12) if kind in ("scales", "huge") else 1.0
    centres = rng.choice([-2.0, 0.0, 3.0], n) + 0.3 * rng.standard_normal(n)
    rows = [scale * (c + 0.2 * rng.standard_normal(rng.randint(1, 4))) for c in centres]
    if rng.uniform() < 0.3:
        i, j = rng.randint(n, size=2)
        rows[i] = rows[j][rng.permutation(len(rows[j]))]
    return rows


def line_problem(rows, graph, dtype=float):
    """A fusion problem of points on a line, and its exact points."""
    X = np.concatenate(rows).astype(dtype)[:, None]
    codes = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    pool = open_rows(Location().bind(1, dtype=X.dtype), X, None, codes, len(rows))
    means = [sum(map(Fraction, r.astype(dtype).tolist())) / len(r) for r in rows]
    return FusionProblem(pool, graph, L2()), means


def draw_lam(rng, graph, means, kind):
    size = float(max(abs(m) for m in means)) or 1.0
    weight = np.exp(np.log(graph.weights).mean()) if graph.n_edges else 1.0
    if kind == "ties":
        return float(rng.choice([0.25, 0.5, 1.0, 1.5, 2.0]))
    if kind == "huge" and rng.uniform() < 0.3:
        return 1e15
    return size / weight * 10.0 ** rng.uniform(-1.5, 0.7)
