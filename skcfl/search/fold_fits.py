"""Fits to the training rows of one fold in a search of lam, and their warm starts."""

import copy
from functools import partial

import numpy as np

from .._progress import quiet
from ..federation.lanes import asked_at_once, lanes_of, together
from ..numerics.by_cluster import numbered
from .judges import is_large

# Numbers of states along edges kept as warm starts of a fold: with several folds, with one.
MAX_KEPT = 8_000_000, 12_000_000
# Distances of values of lam that differ by less than this fraction are equal.
TIE = 1e-9


class FoldFits:
    """Models of all families on some rows, and states that others start from.

    Parameters
    ----------
    families : list of Family
        What competes.
    pool : ClientPool
        The rows.
    one_ledger : bool, default=False
        If True, all exchanges are booked in the ledger of the pool, not by family.
    """

    def __init__(self, families, pool, one_ledger=False):
        self.families, self.pool, self.one_ledger = families, pool, one_ledger
        self.kept = 0
        #: By family and local penalty: pools, problems, and states by lam.
        self.lanes, self.problems, self.states = {}, {}, {}
        #: Refitted models by local penalty and clusters; states by family and lam.
        self.refitted, self.alike = {}, {}

    @property
    def most_kept(self):
        """Most numbers of edges of the states that are kept."""
        return MAX_KEPT[is_large(self.pool)]

    def lane(self, f, alpha):
        """The rows for the members of a family under a local penalty."""
        if (f, alpha) not in self.lanes:
            lane = self.pool.lane(self.pool.random_state.randint(np.iinfo(np.int32).max))
            if self.one_ledger:
                lane.ledger = self.pool.ledger
            self.lanes[f, alpha] = lane if alpha is None else lane.penalised(alpha)
        return self.lanes[f, alpha]

    def problem(self, f, alpha):
        """The problem of a family on these rows."""
        if (f, alpha) not in self.problems:
            self.problems[f, alpha] = self.families[f].problem(self.lane(f, alpha))
        return self.problems[f, alpha]

    def walk(self, f, alpha, lams, n_walks, judged):
        """Members of a family, each from the one before.

        Parameters
        ----------
        f, alpha : int, float or None
            Family and local penalty.
        lams : list of float
            Values of lam.
        n_walks : int
            Walks on this fold that share the memory for states.
        judged : callable
            ``judged(models, ledger)`` returns the losses of some models.

        Returns
        -------
        found : list of tuple
            Key of a member, its losses in the fold, and its clusters.
        states : list of tuple
            Values of lam, and states to start from.
        refitted : dict
            New refitted models, by alpha and clusters.
        """
        family, last, results, states = self.families[f], None, [], []
        room = (self.most_kept - self.kept) / n_walks
        with quiet():
            problem = self.problem(f, alpha)
            lams = sorted(lams)
            inner = [lam for lam in lams if 0.0 < lam < family.fused]
            done = _solved(family, problem, inner) if family.anew else {}
            for lam in lams:
                if lam in done:
                    result = done[lam]
                elif lam not in inner:
                    result = family.solve(problem, 0.0 if lam == 0.0 else np.inf, None)[0]
                else:
                    start = self.start(f, alpha, problem, lam, last)
                    result, state = family.solve(problem, lam, start)
                    last = lam, state
                    if hasattr(state, "without_edges"):
                        room -= problem.graph.n_edges * problem.d
                        states.append((lam, state if room >= 0 else state.without_edges()))
                results.append((lam, numbered(result.labels), result.params))
            refitted = self._refits(f, alpha, problem, results)
            keys, models = [], []
            for lam, labels, params in results:
                for refit in family.refits:
                    keys.append(((f, alpha, float(lam), refit), labels))
                    same = alpha, labels.tobytes()
                    theta = refitted.get(same, self.refitted.get(same)) if refit else None
                    models.append(theta[labels] if refit else params)
            losses = judged(models, self.lane(f, alpha).ledger)
        found = [(key, some, labels) for (key, labels), some in zip(keys, losses, strict=True)]
        return found, states, refitted

    def _refits(self, f, alpha, problem, results):
        """Models of the clusters that were not refitted yet, by alpha and clusters."""
        family, new = self.families[f], {}
        for _, labels, params in results if True in family.refits else []:
            key = alpha, labels.tobytes()
            if key not in self.refitted and key not in new:
                theta = np.zeros((labels.max() + 1, params.shape[1]))
                theta[labels] = params
                new[key] = labels, theta
        if not (new and problem.exact):
            return {key: family.refit(problem, *parts) for key, parts in new.items()}

        def refit(lane, parts):
            return family.refit(_on(problem, lane), *parts)

        asked = [(problem.pool, partial(refit, parts=parts)) for parts in new.values()]
        return dict(zip(new, asked_at_once(*asked), strict=True))

    def start(self, f, alpha, problem, lam, last):
        """State to start from: that of the nearest lam, an exact one rather than another.

        Under another local penalty solutions, and partitions more so, are much the same.
        """
        states = dict(self.states.get((f, alpha), {}))
        if last is not None:
            states[last[0]] = last[1]
        alike = self.alike.get((f, lam))
        if alike is not None and lam not in states:
            state, graph = alike
            return state if _have_same_edges(graph, problem.graph) else state.without_edges()
        if not states:
            return None
        away = {other: abs(np.log(other / lam)) for other in states}
        near = (1.0 + TIE) * min(away.values())
        near = [other for other in sorted(states) if away[other] <= near]
        exact = [o for o in near if getattr(states[o], "labels", None) is not None]
        return states[(exact or near)[0]]

    def keep(self, f, alpha, problem, lam, state):
        """Keep a state to start from at other values of lam, and under other penalties."""
        if not hasattr(state, "without_edges"):
            return
        size = problem.graph.n_edges * problem.d
        room = self.kept + size <= self.most_kept
        state = state if room else state.without_edges()
        self.kept += size * room
        self.states.setdefault((f, alpha), {})[lam] = state
        if room or (f, lam) not in self.alike:
            self.alike[f, lam] = state, problem.graph

    def take(self, f, alpha, states, refitted):
        """Keep the states of a walk, after all walks of the same time have ended."""
        for lam, state in states:
            self.keep(f, alpha, self.problem(f, alpha), lam, state)
        self.refitted.update(refitted)

    def partition(self, f, alpha, lam):
        """Clusters under a family and local penalty."""
        with quiet():
            result, _ = self.families[f].solve(self.problem(f, alpha), lam, None)
        return numbered(result.labels)


def _solved(family, problem, lams):
    """Results by lam, which run together once the memory of the problem is filled."""
    first = 0 if not lams or family.prepare(problem) else 1
    results = [family.solve(problem, lam, None)[0] for lam in lams[:first]]
    lanes = lanes_of(problem.pool, len(lams[first:]))
    pairs = zip(lams[first:], lanes, strict=True)
    tasks = [partial(family.solve, _on(problem, lane), lam, None) for lam, lane in pairs]
    results += [result for result, _ in together(tasks, lanes, problem.pool.ledger)]
    return dict(zip(lams, results, strict=True))


def _on(problem, lane):
    """A problem whose clients are asked in another lane."""
    problem = copy.copy(problem)
    problem.pool = lane
    return problem


def _have_same_edges(a, b):
    if a.is_complete or b.is_complete:
        return a.is_complete and b.is_complete
    return np.array_equal(a.heads, b.heads) and np.array_equal(a.tails, b.tails)
