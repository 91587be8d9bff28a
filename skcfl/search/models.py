r"""Choice of lam, and of what comes with it, by the models that a fit returns.

A *family* is what one graph and one penalty give over lam: from the clients' own models at 0 to
one model for all where everything fuses.  Each of its members may be the penalised models or
the models refitted to each cluster's pooled rows.  A *judge* holds rows out inside the clients:
all members of all families are fitted to the others, roughly, each from the one before, and
judged by their loss on the rows held out.  The grids hold both ends, and around the best member
other values are tried; where it is at an end of a grid that is not an end of the family,
the grid grows.  Local penalties compete at the best member and at both ends.  Where they are
automatic, each end is judged under its own, a standard normal prior once per model, and what lies
between under the geometric mean of the two: a client's own model of few rows is as bad under the
prior of one model for all as no prior at all.

Among members that are not worse than the best by more than `SIMPLER` standard errors of the
difference, one model for all by `ONE_MODEL`, and in ranks, the one with fewest models is taken: on
a table without differences some member is better than the pooled model by chance.  Less local
penalty is not simpler, whatever the number of models; and one model for all keeps the prior of one
model.  Clusters that are the same in all folds, two or more of several clients, are there, and win
by `STABLE`: those of a continuum change with the rows.

Models of few rows are worth more once they have all, which is corrected for quadratic losses, of
which it can be told (``numerics/optimism.py``).

Clusters of all rows are looked at before they are refitted: they have to be about as many as the
folds', which all rows may have under another lam, and none of them so small, next to others, that
its rows do not determine its model, unless clients alone would take their place.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from scipy.stats import rankdata

from .._progress import loop, quiet, series
from ..federation.lanes import asked_at_once, lanes_of, together
from ..numerics.by_cluster import numbered
from .candidates import Alphas, Member
from .judges import is_large

__all__ = ["ModelSearch"]

# Accuracy of the fits that are judged, and iterations of each.
SEARCH_TOL, SEARCH_ITERATIONS = 1e-3, 200
# Most values of lam beyond each end of a grid, and most tried around the best ones.
MAX_BEYOND, ROUNDS = 6, 2
# Least relative gain of a local penalty that is worth looking for lam under it.
MIN_GAIN = 0.01
# Numbers of edges that are kept to start from, a fold: of many folds, and of one.
MAX_KEPT = 8_000_000, 12_000_000
# Differences of losses below this fraction are none.
TIE = 1e-9
# Standard errors within which the fewest models win, one model for all, and clusters that are the
# same in all folds; and beyond which nothing is looked into.
SIMPLER, ONE_MODEL, STABLE, HOPELESS = 1.0, 1.25, 2.0, 2.5
# Signed-rank statistic beyond which nothing is nearly as good (five clients, all of one mind).
RANKS = 2.0
# Values of lam at which all rows are tried for as many clusters as the folds have, and the ratio
# of the first of them.
CONFIRMATIONS, CONFIRMING_STEP = 8, 1.1
# Ratio of the numbers of models of neighbours on a line between which others are always tried.
LEAP = 4.0
# Standard errors within which a mean loss may be the work of one unit, and what it then has to
# outweigh: that share of all differences.
WILD, OUTWEIGHS = 1.5, 0.5
# Refitted clusters compete where all rows have at least that share of the number of the folds, and
# the folds of that of all rows; and no cluster has fewer rows than parameters and than that share
# of the rows of the largest.
WITHIN, SMALL = 0.75, 0.5


class ModelSearch:
    """Choice among families of models, by a judge.

    Parameters
    ----------
    families : list of Family
        What competes.
    judge : Judge or FoldsJudge
        The rows.
    alphas : Alphas, optional
        Local penalties to try; none by default.
    simpler : bool, default=True
        Whether fewer models are preferred within `SIMPLER` standard errors.
    n_jobs : int or None, default=None
        Folds at a time, in threads; all of them where clients are elsewhere.
    """

    def __init__(self, families, judge, alphas=None, simpler=True, n_jobs=None):
        self.families, self.judge, self.simpler = families, judge, simpler
        self.alphas = Alphas() if alphas is None else alphas
        self.n_jobs = n_jobs
        self.members = {}
        self.pools = [*judge.pools, judge.whole]
        self.lanes, self.problems = ([{} for _ in self.pools] for _ in range(2))
        self.refitted = [{} for _ in judge.pools]
        self.states = [{} for _ in judge.pools]
        self.alike = [{} for _ in judge.pools]
        self.partitions, self.confirmed = {}, {}
        self.kept = [0] * len(judge.pools)
        self.warning = None

    def run(self, ledger):
        """Judge the members.

        Parameters
        ----------
        ledger : Ledger
            Where what was sent is booked.

        Returns
        -------
        best : Member
        """
        self.ledger = ledger
        with series("lam", "candidate", None) as self.told:
            self._try_first({f: family.first() for f, family in enumerate(self.families)})
            self._look_around()
            self._try_alphas()
        self.best = self._choose()
        self._note_edge()
        if self.judge.whole is not None:
            ledger.take_over([self.judge.whole.ledger])
        return self.best

    # ----------------------------------------------------------------------------- trying

    def _try_first(self, lams, where="on the grid"):
        """Judge values of lam by family, each with the local penalty that comes first."""
        tasks = {}
        for f, values in lams.items():
            for lam in values:
                tasks.setdefault((f, self.alphas.at(self.families[f], lam)), []).append(lam)
        self._try([(*key, values) for key, values in tasks.items()], where)

    def _try(self, tasks, where):
        """Judge members: a list of family, alpha and values of lam."""
        number = sum(len(values) for *_, values in tasks)
        with self.told.item(f"{number} value{'s' * (number > 1)} of lam {where}", True) as tell:
            self._judge(tasks)
            best = min(self.members.values(), key=_value)
            tell(best_held_out_loss=best.value, at=f"lam {best.lam:.4g}")

    def _judge(self, tasks):
        """Judge members by all folds."""
        n_folds, given = len(self.judge.pools), self._given(tasks)
        tasks = [(f, a, [x for x in lams if x or (f, a) not in given]) for f, a, lams in tasks]
        tasks = [task for task in tasks if task[2]]
        walks = [(k, *task) for k in range(n_folds) for task in tasks]
        lanes = [self._lane(k, f, alpha) for k, f, alpha, _ in walks]
        runs = [partial(self._walk, *walk, len(tasks)) for walk in walks]
        done, parts = [], {}
        with loop("fold", n_folds, sure=True) as folds:
            for some in together(runs, lanes, self.ledger, self.n_jobs):
                done.append(some)
                if len(done) % len(tasks) == 0:
                    folds.tell()
        # No walk starts from what another one has found meanwhile.
        for (k, f, alpha, _), (found, states, refitted) in zip(walks, done, strict=True):
            for key, losses, labels in found:
                parts.setdefault(key, []).append((losses, labels))
            for lam, state in states:
                self._keep(k, f, alpha, self._problem(k, f, alpha), lam, state)
            self.refitted[k].update(refitted)
        for key, some in parts.items():
            losses = sum(losses for losses, _ in some)
            self._add(Member(*key, losses, *self._partitions([labels for _, labels in some])))
        for (f, alpha), other in given.items():
            for refit in self.families[f].refits:
                self._add(replace(self.members[other, alpha, 0.0, refit], family=f))

    def _given(self, tasks):
        """Families whose clients' own models another family has too: that one, by (f, alpha)."""
        given = {}
        known = [(m.family, m.alpha) for m in self.members.values() if m.lam == 0.0]
        for f, alpha, lams in tasks:
            if 0.0 in lams:
                wanted = {*self.families[f].refits}
                same = [g for g, a in known if a == alpha]
                others = [g for g in same if wanted <= {*self.families[g].refits}]
                if others:
                    given[f, alpha] = others[0]
                else:
                    known.append((f, alpha))
        return given

    def _add(self, member):
        """Take up a member that was judged."""
        member.value = float(member.losses.sum() / self.judge.weights.sum())
        self.members[member.family, member.alpha, member.lam, member.refit] = member
        name = ", ".join(f"{k}={v}" for k, v in self.families[member.family].name.items())
        self.told.remark(
            f"{name}, lam {member.lam:.4g}{', refitted' if member.refit else ''}: "
            f"{member.n_models:.3g} models, held-out loss {member.value:.6g}"
        )

    @staticmethod
    def _partitions(labels):
        """Numbers of models in the folds, and whether the clusters are stable.

        Stable clusters are the same in all folds, and two or more have several clients: one wild
        client is apart in every fold.
        """
        counts = tuple(int(some.max()) + 1 for some in labels)
        stable = np.count_nonzero(np.bincount(labels[0]) > 1) > 1
        return counts, stable and all(np.array_equal(labels[0], other) for other in labels[1:])

    def _walk(self, k, f, alpha, lams, n_walks):
        """Members of a family on the rows of fold k, each from the one before.

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
        room = (MAX_KEPT[is_large(self.judge.pools[k])] - self.kept[k]) / n_walks
        with quiet():
            problem = self._problem(k, f, alpha)
            lams = sorted(lams)
            inner = [lam for lam in lams if 0.0 < lam < family.fused]
            done = self._solved(family, problem, inner) if family.anew else {}
            for lam in lams:
                if lam in done:
                    result = done[lam]
                elif lam not in inner:
                    result = family.solve(problem, 0.0 if lam == 0.0 else np.inf, None)[0]
                else:
                    start = self._start(k, f, alpha, problem, lam, last)
                    result, state = family.solve(problem, lam, start)
                    last = lam, state
                    if hasattr(state, "without_edges"):
                        room -= problem.graph.n_edges * problem.d
                        states.append((lam, state if room >= 0 else state.without_edges()))
                results.append((lam, numbered(result.labels), result.params))
            refitted = self._refits(k, f, alpha, problem, results)
            keys, models = [], []
            for lam, labels, params in results:
                for refit in family.refits:
                    keys.append(((f, alpha, float(lam), refit), labels))
                    same = alpha, labels.tobytes()
                    theta = refitted.get(same, self.refitted[k].get(same)) if refit else None
                    models.append(theta[labels] if refit else params)
            losses = self.judge.losses(k, models, self._lane(k, f, alpha).ledger)
        found = [(key, some, labels) for (key, labels), some in zip(keys, losses, strict=True)]
        return found, states, refitted

    @staticmethod
    def _solved(family, problem, lams):
        """Results by lam, which do not wait for each other but for what the problem remembers."""
        results = [family.solve(problem, lam, None)[0] for lam in lams[:1]]
        lanes = lanes_of(problem.pool, len(lams[1:]))
        pairs = zip(lams[1:], lanes, strict=True)
        tasks = [partial(family.solve, _on(problem, lane), lam, None) for lam, lane in pairs]
        results += [result for result, _ in together(tasks, lanes, problem.pool.ledger)]
        return dict(zip(lams, results, strict=True))

    def _refits(self, k, f, alpha, problem, results):
        """Models of the clusters that were not refitted yet, by alpha and clusters."""
        family, new = self.families[f], {}
        for _, labels, params in results if True in family.refits else []:
            key = alpha, labels.tobytes()
            if key not in self.refitted[k] and key not in new:
                theta = np.zeros((labels.max() + 1, params.shape[1]))
                theta[labels] = params
                new[key] = labels, theta
        if not (new and problem.exact):
            return {key: family.refit(problem, *parts) for key, parts in new.items()}

        def refit(lane, parts):
            return family.refit(_on(problem, lane), *parts)

        asked = [(problem.pool, partial(refit, parts=parts)) for parts in new.values()]
        return dict(zip(new, asked_at_once(*asked), strict=True))

    def _start(self, k, f, alpha, problem, lam, last):
        """State to start from: that of the nearest lam, an exact one rather than another.

        Under another local penalty solutions, and partitions more so, are much the same.
        """
        states = dict(self.states[k].get((f, alpha), {}))
        if last is not None:
            states[last[0]] = last[1]
        alike = self.alike[k].get((f, lam))
        if alike is not None and lam not in states:
            state, graph = alike
            return state if _have_same_edges(graph, problem.graph) else state.without_edges()
        if not states:
            return None
        away = {other: abs(np.log(other / lam)) for other in states}
        near = (1.0 + TIE) * min(away.values())
        near = [other for other in sorted(states) if away[other] <= near]
        exact = [other for other in near if _is_exact(states[other])]
        return states[(exact or near)[0]]

    def _keep(self, k, f, alpha, problem, lam, state):
        """Keep a state to start from at other values of lam, and under other penalties."""
        if not hasattr(state, "without_edges"):
            return
        size = problem.graph.n_edges * problem.d
        room = self.kept[k] + size <= MAX_KEPT[is_large(self.judge.pools[k])]
        state = state if room else state.without_edges()
        self.kept[k] += size * room
        self.states[k].setdefault((f, alpha), {})[lam] = state
        if room or (f, lam) not in self.alike[k]:
            self.alike[k][f, lam] = state, problem.graph

    def _lane(self, k, f, alpha):
        """The rows of fold k, of all rows last, for the members of a family."""
        lanes, pool = self.lanes[k], self.pools[k]
        if (f, alpha) not in lanes:
            lane = pool.lane(pool.random_state.randint(np.iinfo(np.int32).max))
            if pool is self.judge.whole:
                lane.ledger = pool.ledger
            lanes[f, alpha] = lane if alpha is None else lane.penalised(alpha)
        return lanes[f, alpha]

    def _problem(self, k, f, alpha):
        """The problem of a family on these rows."""
        problems = self.problems[k]
        if (f, alpha) not in problems:
            problems[f, alpha] = self.families[f].problem(self._lane(k, f, alpha))
        return problems[f, alpha]

    # ------------------------------------------------------------------------ around the best

    def _look_around(self):
        """Values beyond the end of a grid where the best is there, and beside the best."""
        for _ in range(MAX_BEYOND):
            lams = {}
            for member in self._leaders():
                beyond = self._beyond(member)
                if beyond is not None:
                    lams.setdefault(member.family, set()).add(beyond)
            if not lams or self.told.stopped:
                break
            self._try_first(lams, "beyond the grid")
        # If the best of few values has all clients alone, clusters may be between two of them.
        few = is_large(self.judge.pools[0])
        for _ in range(1 if few else ROUNDS):
            lams = {}
            for member in self._leaders():
                if few and not (member.refit and member.n_models == self.judge.pools[0].n_clients):
                    continue
                lams.setdefault(member.family, set()).update(self._beside(member))
                if member.refit:
                    for f, lam in self._between_partitions(member):
                        lams.setdefault(f, set()).add(lam)
            if not any(lams.values()) or self.told.stopped:
                break
            self._try_first(lams, "around the best")

    def _is_first(self, member):
        """Whether a member has the local penalty that comes first."""
        return member.alpha == self.alphas.at(self.families[member.family], member.lam)

    def _first(self):
        """Members with the local penalties that come first."""
        return [m for m in self.members.values() if self._is_first(m)]

    def _leaders(self):
        """The best penalised and the best refitted member, if not hopelessly behind the other."""
        leaders = []
        for refit in (False, True):
            some = [m for m in self._first() if m.refit == refit]
            if some:
                leaders.append(self._best_kept(some, self._best_of))
        best = min(leaders, key=_value)
        return [m for m in leaders if self._near(m, best)]

    def _near(self, member, best):
        change, error = self.difference(member, best)
        return change <= HOPELESS * error

    def _between_partitions(self, best):
        """Where partitions as good as the best are next to much coarser or finer ones.

        So they may be in the widest gap of a line, where the members on both sides are hopeless:
        nearly all clients alone, and nearly all in one cluster.
        """
        out = []
        for f, family in enumerate(self.families):
            line = [m for m in self._first() if (m.family, m.refit) == (f, True) and m.lam > 0.0]
            line.sort(key=_lam)
            if not (family.grows and family.refines):
                continue
            gaps = [a.n_models / b.n_models for a, b in pairwise(line)]
            for (a, b), gap in zip(pairwise(line), gaps, strict=True):
                near = self._near(a, best) or self._near(b, best) or max(LEAP, *gaps) == gap
                if near and a.n_models - b.n_models > 1.0:
                    out.append((f, float(np.sqrt(a.lam * b.lam))))
        return out

    def _line(self, member):
        """Members tried first of the family and kind of a member, ascending."""
        like = member.family, member.refit
        return sorted((m for m in self._first() if (m.family, m.refit) == like), key=_lam)

    def _beyond(self, member):
        """The next value beyond the grid where the best is its first or last positive one."""
        family, lams = self.families[member.family], [m.lam for m in self._line(member)]
        inner = [lam for lam in lams if 0.0 < lam < family.fused]
        if not family.grows or len(inner) < 2 or member.lam not in (inner[0], inner[-1]):
            return None
        step = (inner[-1] / inner[0]) ** (1.0 / (len(inner) - 1))
        if member.lam == inner[0]:
            below = inner[0] / step
            return below if below > 1e-12 * inner[-1] else None
        above = inner[-1] * step
        return above if above < family.fused else None

    def _beside(self, member):
        """Halfway to the neighbours of a member, where these are not the same models."""
        family, line = self.families[member.family], self._line(member)
        refines = family.grows and family.refines
        if not refines or member.lam == 0.0 or member.lam >= family.fused:
            return []
        place = next(i for i, m in enumerate(line) if m.lam == member.lam)
        return [
            float(np.sqrt(other.lam * member.lam))
            for other in line[max(place - 1, 0) : place] + line[place + 1 : place + 2]
            if other.lam > 0.0 and not _equal(other.value, member.value)
        ]

    def _try_alphas(self):
        """Other local penalties at the best member and at both ends."""
        if len(self.alphas.others) < 2:
            return
        lams = {}
        for member in self._leaders():
            ends = self.families[member.family].first()
            lams.setdefault(member.family, set()).update((member.lam, ends[0], ends[-1]))
        tried = {(m.family, m.alpha, m.lam) for m in self.members.values()}
        left = [
            (f, alpha, [lam for lam in values if (f, alpha, lam) not in tried])
            for alpha in self.alphas.others
            for f, values in sorted(lams.items())
        ]
        if self.told.stopped:
            return
        self._try([task for task in left if task[2]], "under other local penalties")
        if is_large(self.judge.pools[0]):
            return
        # Where another one is better for models that differ, lam is looked for under it too.
        apart = [m for m in self.members.values() if m.lam < self.families[m.family].fused]
        inner = [m for m in apart if m.lam > 0.0]
        best = min(apart, key=_value)
        alpha, usual = best.alpha, [m.value for m in apart if m.alpha == self.alphas.inner]
        if inner and alpha != self.alphas.inner and _gains(best.value, min(usual)):
            f = min(inner, key=_value).family
            tried = {m.lam for m in self.members.values() if (m.family, m.alpha) == (f, alpha)}
            lams = [lam for lam in self.families[f].first() if lam not in tried]
            self._try([(f, alpha, lams)], f"under alpha {alpha:.4g}")

    # ----------------------------------------------------------------------------- choosing

    def _best_of(self, members):
        """The member of least loss; of equal ones that in the middle of their values of lam."""
        least = min(m.value for m in members)
        if not np.isfinite(least):
            return members[0]
        first = next(m for m in members if m.value == least)
        like = first.family, first.alpha, first.refit
        equal = sorted(
            (
                m
                for m in members
                if _equal(m.value, least) and (m.family, m.alpha, m.refit) == like
            ),
            key=_lam,
        )
        # The ends of a family stand for themselves.
        family = self.families[first.family]
        inner = [m for m in equal if 0.0 < m.lam < family.fused]
        if any(m.lam == 0.0 for m in equal):
            return equal[0]
        if any(m.lam >= family.fused for m in equal):
            return equal[-1]
        return inner[len(inner) // 2]

    def _choose(self):
        """The simplest of the members that are nearly the best."""
        members = list(self.members.values())
        self._best_kept(members, self._best_of)
        best = self._best_kept(members, self._simplest)
        if not np.isfinite(best.value):
            raise ValueError("No model has a finite score on the rows held out.")
        if self.judge.whole is None or not best.refit or self._is_end(best):
            return best
        confirmed = self._confirmed(best)
        self.members[best.family, best.alpha, confirmed.lam, True] = confirmed
        return confirmed

    def _best_kept(self, members, choose):
        """The member chosen that is what was judged, once it is refitted to all rows.

        Its clusters have to be about as many as the folds', and none so small that its rows do not
        determine its model: which clients are alone is partly chance where rows are few, and such
        a model may be anything.  Then finer partitions are out of the question, too, and only the
        clients' own models, which all folds have, are left of them; if these would win, with the
        same rows for each of them, the partition is kept.  What is left out is taken out of the
        list.
        """
        rest, too_fine = list(members), None
        while True:
            best = choose(rest)
            if self.judge.whole is None or not best.refit or self._is_end(best):
                break
            confirmed = self._confirmed(best)
            if confirmed is None:
                rest.remove(best)
                continue
            labels = self._partition_of(confirmed, confirmed.lam)
            rows = np.bincount(labels, self.judge.whole.client_sizes)
            if rows.min() >= min(self.judge.whole.model.n_free, SMALL * rows.max()):
                break
            too_fine = best if too_fine is None else too_fine
            rest = [
                m
                for m in rest
                if m is not best and (not m.refit or m.lam == 0.0 or m.n_models < best.n_models)
            ]
        if too_fine is not None and best.lam == 0.0:
            return too_fine
        members[:] = rest
        return best

    def _confirmed(self, member):
        """A refitted member at the lam that gives all rows about as many clusters as its folds.

        Models of more rows are nearer to each other, and fuse at other values than the folds' do.
        None if no value is found.
        """
        key = member.family, member.alpha, member.lam
        if key not in self.confirmed:
            self.confirmed[key] = self._confirm(member)
        return self.confirmed[key]

    def _confirm(self, member):
        least, most = WITHIN * min(member.counts), max(member.counts) / WITHIN
        step, before, lam = CONFIRMING_STEP, None, member.lam
        for _ in range(CONFIRMATIONS if self.families[member.family].grows else 1):
            n_models = int(self._partition_of(member, lam).max()) + 1
            if least <= n_models <= most:
                found = replace(member, lam=lam)
                found.value = member.value
                return found
            up = n_models > most
            # Beyond what is looked for: back, by less.
            step = step if before in (None, up) else np.sqrt(step)
            before, lam = up, float(lam * step if up else lam / step)
        return None

    def _partition_of(self, member, lam):
        """Clusters of all rows under a member's family and local penalty."""
        key = member.family, member.alpha, lam
        if key not in self.partitions:
            with quiet():
                problem = self._problem(-1, member.family, member.alpha)
                result, _ = self.families[member.family].solve(problem, lam, None)
            self.partitions[key] = numbered(result.labels)
        return self.partitions[key]

    def _is_end(self, member):
        return member.lam == 0.0 or self._is_fused(member)

    def _is_fused(self, member):
        return member.lam >= self.families[member.family].fused

    def _simplest(self, members):
        """The best of some members, or the one of fewest models that is nearly as good."""
        best = self._best_of(members)
        if not self.simpler or not np.isfinite(best.value):
            return best
        robust = self._best_but_for_one(members, best)
        best = best if robust is None else robust
        near = [best]
        for member in members:
            fused = self._is_fused(member)
            if not (fused or member.stable) and self._is_looser(member, best):
                continue
            change, error = self.difference(member, best)
            margin = ONE_MODEL if fused else STABLE if member.stable else SIMPLER
            if robust is not None:
                is_near = np.isfinite(change) and self._ranks(member, best) <= margin
            else:
                ranks = ONE_MODEL if fused else RANKS
                is_near = change <= margin * error and self._ranks(member, best) <= ranks
            if is_near:
                near.append(member)
        fewest = min(m.n_models for m in near)
        near = [m for m in near if m.n_models == fewest]
        if self.alphas.of_one:
            own = [m for m in near if self._is_fused(m) and self._is_first(m)]
            near = own or near
        best = self._best_of(near)
        if not best.refit or self._is_end(best):
            return best
        # Partitions that are as good: as far as can be from where clusters part or fuse.
        like = sorted((m for m in near if m.refit and m.family == best.family), key=_lam)
        inner = [m for m in like if not self._is_end(m)]
        return inner[len(inner) // 2]

    @staticmethod
    def _is_looser(member, other):
        """Whether a member has less local penalty than another one."""
        return member.alpha is not None and member.alpha < other.alpha

    def _best_but_for_one(self, members, best):
        """The best member by ranks where one unit alone makes another one the best by the mean.

        Counts that a model of few rows extrapolates can be wrong by orders of magnitude.  None
        where no unit is so wild.
        """
        found, least = None, -RANKS
        for member in members:
            change, error = self.difference(member, best)
            if not 0.0 < change <= WILD * error:
                continue
            size = np.abs(member.losses - best.losses)
            if size.max() > OUTWEIGHS * size.sum():
                ranks = self._ranks(member, best)
                if ranks < least:
                    found, least = member, ranks
        return found

    def difference(self, member, other):
        """Mean loss of a member less that of another one, and its standard error."""
        if not np.isfinite(member.value):
            return np.inf, 0.0
        if not np.isfinite(other.value):
            return -np.inf, 0.0
        weights = self.judge.weights
        total = weights.sum()
        change = member.losses - other.losses
        mean = change.sum() / total
        n = max(np.count_nonzero(weights), 2)
        rest = change - mean * weights
        return float(mean), float(np.sqrt(n / (n - 1) * (rest**2).sum()) / total)

    def _ranks(self, member, other):
        """Signed-rank statistic of the units' losses, positive where a member is worse.

        One unit with a few wild rows may decide the mean and its error; ranks do not mind it.
        """
        judges = self.judge.weights > 0
        change = (member.losses - other.losses)[judges] / np.sqrt(self.judge.weights[judges])
        change = change[np.abs(change) > TIE * np.abs(change).max(initial=0.0)]
        ranks = rankdata(np.abs(change))
        return float((np.sign(change) * ranks).sum() / max(np.sqrt((ranks**2).sum()), 1e-300))

    def _note_edge(self):
        """What to say where the best value is at an end of the values that may be tried."""
        best, family = self.best, self.families[self.best.family]
        lams = sorted({m.lam for m in self.members.values() if m.family == best.family})
        if len(lams) < 3 or best.lam == 0.0 or best.lam >= family.fused:
            return
        if best.lam in (lams[0], lams[-1]) and not self._has_levelled(best):
            end = "least" if best.lam == lams[0] else "largest"
            self.warning = (
                f"The best lam, {best.lam:.4g}, is the {end} of those tried. Try others beyond it."
            )

    def _has_levelled(self, best):
        """Whether a grid that grew ends where lam no longer changes the loss.

        Under ``"squared_l2"`` models come ever closer and are never equal: where all clients share
        a model, each larger lam gains less than the fits are accurate to.
        """
        line = [m for m in self.along(best) if m.lam > 0.0]
        if not self.families[best.family].grows or len(line) < 2:
            return False
        beside = line[1] if best is line[0] else line[-2]
        return abs(beside.value - best.value) <= SEARCH_TOL * abs(best.value)

    # ------------------------------------------------------------------------------ record

    def record(self):
        """What was tried, one entry a member: arrays by name."""
        order = sorted(
            self.members.values(),
            key=lambda m: (m.family, -1 if m.alpha is None else m.alpha, m.refit, m.lam),
        )
        table = {
            name: np.array([self.families[m.family].name[name] for m in order])
            for name in self.families[0].name
        }
        table["refit"] = np.array([m.refit for m in order])
        if self.alphas.others:
            table["alpha"] = np.array([m.alpha for m in order])
        table["lam"] = np.array([m.lam for m in order])
        table["n_clusters"] = np.array([m.n_models for m in order])
        table["criterion"] = np.array([m.value for m in order])
        table["standard_error"] = np.array([self.difference(m, self.best)[1] for m in order])
        table["chosen"] = np.array([m is self.best for m in order])
        return table

    def published(self):
        """Attributes of an estimator: what was tried, and the scores of folds over lam."""
        out = {"lam_search": self.record()}
        if self.judge.units == "folds":
            members = self.along(self.best)
            out["lams"] = np.array([m.lam for m in members])
            out["cv_scores"] = np.array([-m.losses for m in members]).T
            out["best_index"] = members.index(self.best)
        return out

    def along(self, member):
        """Members that differ from one in lam only, ascending."""
        like = member.family, member.alpha, member.refit
        some = [m for m in self.members.values() if (m.family, m.alpha, m.refit) == like]
        return sorted(some, key=_lam)


def _on(problem, lane):
    """A problem whose clients are asked in another lane."""
    problem = copy.copy(problem)
    problem.pool = lane
    return problem


def _is_exact(state):
    return getattr(state, "labels", None) is not None


def _have_same_edges(a, b):
    if a.is_complete or b.is_complete:
        return a.is_complete and b.is_complete
    return np.array_equal(a.heads, b.heads) and np.array_equal(a.tails, b.tails)


def _lam(member):
    return member.lam


def _value(member):
    return member.value


def _gains(value, before):
    return before - value > MIN_GAIN * abs(before)


def _equal(a, b):
    return abs(a - b) <= TIE * max(abs(a), abs(b))
