r"""Search of lam, and of what comes with it, by the models that a fit returns.

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

Models gain from the rows that were held out; losses are corrected for it where they are quadratic
(``numerics/optimism.py``).
"""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np

from .._progress import loop, series
from ..federation.lanes import together
from .candidates import Alphas, Member
from .fold_fits import FoldFits
from .judges import comparable, is_large
from .simplest import Choice, by_lam, tied

__all__ = ["ModelSearch"]

# Accuracy of the fits that are judged.
SEARCH_TOL = 1e-3
# Most iterations of each.
SEARCH_ITERATIONS = 200
# Most values of lam beyond each end of a grid.
MAX_BEYOND = 6
# Times that values around the best ones are tried.
ROUNDS = 2
# Least relative gain of a local penalty that is worth looking for lam under it.
MIN_GAIN = 0.01
# Ratio of the numbers of models of neighbours on a line between which others are always tried.
LEAP = 4.0


class ModelSearch:
    """Choice among families of models, by a judge.

    Parameters
    ----------
    families : list of Family
        What competes.
    judge : HeldOutLoss or FoldsJudge
        The rows.
    alphas : Alphas, optional
        Local penalties to try; none by default.
    simpler : bool, default=True
        If True, fewer models win within `SIMPLER` standard errors.
    n_jobs : int or None, default=None
        Folds at a time, in threads; all of them where clients are elsewhere.
    """

    def __init__(self, families, judge, alphas=None, simpler=True, n_jobs=None):
        self.families, self.judge, self.n_jobs = families, judge, n_jobs
        self.alphas = Alphas() if alphas is None else alphas
        self.members, self.warning = {}, None
        #: Losses of the members by fold, as they were answered.
        self.answers, self.partly = {}, False
        self.folds = [FoldFits(families, pool) for pool in judge.pools]
        whole = None if judge.whole is None else FoldFits(families, judge.whole, True)
        self.choice = Choice(families, judge.weights, self.alphas, simpler, whole)

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
        with series("lam", "candidate", None) as self.progress:
            self._try_first({f: family.first() for f, family in enumerate(self.families)})
            self._look_around()
            self._try_alphas()
        self.best = self.choose()
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
        label = f"{number} value{'s' * (number > 1)} of lam {where}"
        with self.progress.item(label, True) as tell:
            self._judge(tasks)
            best = min(self.members.values(), key=_value)
            tell(best_held_out_loss=best.value, at=f"lam {best.lam:.4g}")

    def _judge(self, tasks):
        """Judge members by all folds."""
        n_folds, given = len(self.folds), self._given(tasks)
        tasks = [(f, a, [x for x in lams if x or (f, a) not in given]) for f, a, lams in tasks]
        tasks = [task for task in tasks if task[2]]
        walks = [(k, *task) for k in range(n_folds) for task in tasks]
        lanes = [self.folds[k].lane(f, alpha) for k, f, alpha, _ in walks]
        runs = [
            partial(self.folds[k].walk, *walk, len(tasks), partial(self.judge.losses, k))
            for k, *walk in walks
        ]
        done, parts = [], {}
        with loop("fold", n_folds, sure=True) as folds:
            for some in together(runs, lanes, self.ledger, self.n_jobs):
                done.append(some)
                if len(done) % len(tasks) == 0:
                    folds.tell()
        # No walk starts from the states of another one that ran at the same time.
        for (k, f, alpha, _), (found, states, refitted) in zip(walks, done, strict=True):
            for key, losses, labels in found:
                parts.setdefault(key, []).append((losses, labels))
            self.folds[k].take(f, alpha, states, refitted)
        for key, some in parts.items():
            losses, labels = zip(*some, strict=True)
            self._add(Member(*key, sum(losses), *self._partitions(labels)), losses)
        for (f, alpha), other in given.items():
            for refit in self.families[f].refits:
                same = self.members[other, alpha, 0.0, refit]
                self._add(replace(same, family=f), self.answers[other, alpha, 0.0, refit])

    def _given(self, tasks):
        """Another family that has the same clients' own models, by family and local penalty."""
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

    def _add(self, member, losses):
        """Take up a member that was judged, with its losses by fold."""
        key = member.family, member.alpha, member.lam, member.refit
        self.members[key], self.answers[key] = member, losses
        self.partly |= bool(np.isnan(losses).any())
        member.value = float(member.losses.sum() / self.choice.weights.sum())
        if self.partly:
            self._compare()
        name = ", ".join(f"{k}={v}" for k, v in self.families[member.family].name.items())
        self.progress.remark(
            f"{name}, lam {member.lam:.4g}{', refitted' if member.refit else ''}: "
            f"{member.n_models:.3g} models, held-out loss {member.value:.6g}"
        )

    def _compare(self):
        """Let only those judge the members who have answered about all."""
        weights = np.array(self.judge.parts)
        answers = np.array([self.answers[key] for key in self.members])
        found, weights = comparable(answers.reshape(len(answers), -1), weights.ravel())
        self.choice.weights = weights.reshape(answers.shape[1:]).sum(axis=0)
        for member, losses in zip(self.members.values(), found, strict=True):
            member.losses = losses.reshape(answers.shape[1:]).sum(axis=0)
            member.value = float(member.losses.sum() / self.choice.weights.sum())
        self.choice.confirmed.clear()

    @staticmethod
    def _partitions(labels):
        """Numbers of models in the folds, and whether the clusters are stable.

        Stable clusters are the same in all folds, and two or more have several clients: one
        outlying client is separate in every fold.
        """
        counts = tuple(int(some.max()) + 1 for some in labels)
        stable = np.count_nonzero(np.bincount(labels[0]) > 1) > 1
        return counts, stable and all(np.array_equal(labels[0], other) for other in labels[1:])

    # ------------------------------------------------------------------------ around the best

    def _look_around(self):
        """Values beyond the end of a grid where the best is there, and beside the best."""
        for _ in range(MAX_BEYOND):
            lams = {}
            for member in self._leaders():
                beyond = self._beyond(member)
                if beyond is not None:
                    lams.setdefault(member.family, set()).add(beyond)
            if not lams or self.progress.stopped:
                break
            self._try_first(lams, "beyond the grid")
        # If the best of few values has single-client clusters only, try between two of them.
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
            if not any(lams.values()) or self.progress.stopped:
                break
            self._try_first(lams, "around the best")

    def _first(self):
        """Members with the local penalties that come first."""
        return [m for m in self.members.values() if self.choice.is_first(m)]

    def _leaders(self):
        """The best penalised and the best refitted member, if not hopelessly behind the other."""
        leaders = []
        for refit in (False, True):
            some = [m for m in self._first() if m.refit == refit]
            # Which refitted members are kept takes fits to all rows.
            if leaders and some and not self.choice.near(self.choice.best_of(some), leaders[0]):
                continue
            if some:
                leaders.append(self.choice.best_kept(some, self.choice.best_of))
        best = min(leaders, key=_value)
        return [m for m in leaders if self.choice.near(m, best)]

    def _between_partitions(self, best):
        """Values of lam between partitions as good as the best and much coarser or finer ones.

        Also in the widest gap of a line, even if the members on both sides are clearly worse:
        nearly all single-client clusters, and nearly all clients in one.
        """
        out = []
        for f, family in enumerate(self.families):
            line = [m for m in self._line(f, True) if m.lam > 0.0]
            if not (family.grows and family.refines):
                continue
            gaps = [a.n_models / b.n_models for a, b in pairwise(line)]
            for (a, b), gap in zip(pairwise(line), gaps, strict=True):
                near = (
                    self.choice.near(a, best)
                    or self.choice.near(b, best)
                    or max(LEAP, *gaps) == gap
                )
                if near and a.n_models - b.n_models > 1.0:
                    out.append((f, float(np.sqrt(a.lam * b.lam))))
        return out

    def _line(self, *like):
        """Members tried first of the family and kind of a member, ascending."""
        return sorted((m for m in self._first() if (m.family, m.refit) == like), key=by_lam)

    def _beyond(self, member):
        """The next value beyond the grid where the best is its first or last positive one."""
        family = self.families[member.family]
        lams = [m.lam for m in self._line(member.family, member.refit)]
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
        family, line = self.families[member.family], self._line(member.family, member.refit)
        refines = family.grows and family.refines
        if not refines or member.lam == 0.0 or member.lam >= family.fused:
            return []
        place = next(i for i, m in enumerate(line) if m.lam == member.lam)
        return [
            float(np.sqrt(other.lam * member.lam))
            for other in line[max(place - 1, 0) : place] + line[place + 1 : place + 2]
            if other.lam > 0.0 and not tied(other.value, member.value)
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
        if self.progress.stopped:
            return
        self._try([task for task in left if task[2]], "under other local penalties")
        if is_large(self.judge.pools[0]):
            return
        # If another one is better for models that differ, lam is sought under it too.
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

    def choose(self):
        """The member that is taken, which is one of those published."""
        best = self.choice.of(self.members.values())
        self.members[best.family, best.alpha, best.lam, best.refit] = best
        return best

    def _note_edge(self):
        """A warning if the best value is the first or the last of those that may be tried."""
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
        """If True, a grid that grew ends where lam no longer changes the loss.

        Under ``"squared_l2"`` models come ever closer and are never equal: if all clients share a
        model, each larger lam gains less than the accuracy of the fits.
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
        table["standard_error"] = np.array(
            [self.choice.difference(m, self.best)[1] for m in order]
        )
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
        return sorted(some, key=by_lam)


def _value(member):
    return member.value


def _gains(value, before):
    return before - value > MIN_GAIN * abs(before)
