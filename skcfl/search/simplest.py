"""The simplest within a margin: which member a search takes, by differences of held-out losses.

The search takes the member of fewest models among those that are not worse than the best by more
than `SIMPLER` standard errors of the difference: on a table without differences some member beats
the pooled model by chance.  One model for all has the margin `ONE_MODEL`, also in ranks.  Clusters
that are the same in all folds, two or more of several clients, have the margin `STABLE`: clusters
of a continuum change with the rows.  A member with less local penalty is not simpler, whatever its
number of models, and one model for all keeps the prior of one model.

Before clusters are refitted, those of all rows are checked.  They have to be about as many as in
the folds, for which another lam is tried if necessary.  None may be so small that its rows do not
determine its model, unless single-client clusters would take its place.
"""

from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

# Relative differences of losses below this are rounding.
TIE = 1e-9
# Standard errors within which fewer models win. Benchmark: benchmarks/heuristics.py, as below.
SIMPLER = 1.0
# The same for one model for all.
ONE_MODEL = 1.25
# The same for clusters that are equal in all folds.
STABLE = 2.0
# Standard errors behind the best beyond which a member is not examined.
HOPELESS = 2.5
# Signed-rank statistic beyond which a member is clearly worse: five clients that all agree.
RANKS = 2.0
# Most values of lam tried on all rows to get as many clusters as in the folds.
CONFIRMATIONS = 8
# Ratio of the first of these values.
CONFIRMING_STEP = 1.1
# Outlier test of one unit: standard errors within which it may decide a difference of means,
WILD = 1.5
# and the share of the sum of all differences that it exceeds.
OUTWEIGHS = 0.5
# Least ratio of the numbers of clusters of all rows and of the folds, either way.
WITHIN = 0.75
# A cluster of fewer rows than parameters is small below this share of the rows of the largest.
SMALL = 0.5


class Choice:
    """The simplest of the members that are nearly the best.

    Parameters
    ----------
    families : list of Family
        What competes.
    weights : ndarray
        Weights of the units that judge.
    alphas : Alphas
        Local penalties that compete.
    simpler : bool
        If True, fewer models win within `SIMPLER` standard errors.
    whole : FoldFits or None
        All rows, whose clusters are checked before they are refitted; None checks nothing.
    """

    def __init__(self, families, weights, alphas, simpler, whole):
        self.families, self.weights, self.alphas = families, weights, alphas
        self.prefers_simpler, self.whole = simpler, whole
        self.partitions, self.confirmed = {}, {}

    def of(self, members):
        """The member that is taken, at the lam that gives all rows its clusters."""
        members = list(members)
        self.best_kept(members, self.best_of)
        best = self.best_kept(members, self.simplest)
        if not np.isfinite(best.value):
            raise ValueError("No model has a finite score on the rows held out.")
        if self.whole is None or not best.refit or self.is_end(best):
            return best
        return self.confirmed_member(best)

    def best_of(self, members):
        """The member of least loss; of equal ones that in the middle of their values of lam."""
        least = min(m.value for m in members)
        if not np.isfinite(least):
            return members[0]
        first = next(m for m in members if m.value == least)
        like = first.family, first.alpha, first.refit
        alike = sorted(
            (m for m in members if tied(m.value, least) and (m.family, m.alpha, m.refit) == like),
            key=by_lam,
        )
        # The ends of a family stand for themselves.
        family = self.families[first.family]
        inner = [m for m in alike if 0.0 < m.lam < family.fused]
        if any(m.lam == 0.0 for m in alike):
            return alike[0]
        if any(m.lam >= family.fused for m in alike):
            return alike[-1]
        return inner[len(inner) // 2]

    def best_kept(self, members, choose):
        """The member chosen that is what was judged, once it is refitted to all rows.

        Its clusters have to be about as many as in the folds.  None may be so small that its rows
        do not determine its model: with few rows, single-client clusters are partly chance.  Then
        finer partitions are left out too, except for the clients' own models; if those would win,
        the partition is kept, as its models have no fewer rows.  Members that are left out are
        removed from the list.
        """
        rest, too_fine = list(members), None
        while True:
            best = choose(rest)
            if self.whole is None or not best.refit or self.is_end(best):
                break
            confirmed = self.confirmed_member(best)
            if confirmed is None:
                rest.remove(best)
                continue
            labels = self._partition_of(confirmed, confirmed.lam)
            rows = np.bincount(labels, self.whole.pool.client_sizes)
            if rows.min() >= min(self.whole.pool.model.n_free, SMALL * rows.max()):
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

    def confirmed_member(self, member):
        """A refitted member at the lam that gives all rows about as many clusters as its folds.

        Models of more rows are nearer to each other, and fuse at other values of lam.  None if no
        value is found.
        """
        key = member.family, member.alpha, member.lam
        if key not in self.confirmed:
            self.confirmed[key] = self._confirm(member)
        return self.confirmed[key]

    def _confirm(self, member):
        least, most = WITHIN * min(member.counts), max(member.counts) / WITHIN
        step, before, lam = CONFIRMING_STEP, None, member.lam
        for _ in range(CONFIRMATIONS if self.families[member.family].grows else 1):
            n_models = self._n_models(member, lam, least, most)
            if least <= n_models <= most:
                found = replace(member, lam=lam)
                found.value = member.value
                return found
            up = n_models > most
            # Overshot: go back by a smaller step.
            step = step if before in (None, up) else np.sqrt(step)
            before, lam = up, float(lam * step if up else lam / step)
        return None

    def _n_models(self, member, lam, least, most):
        """Number of clusters of all rows, or a known one that is beyond the same limit.

        Larger values of lam have fewer clusters: known partitions tell what others come to.
        """
        for (*line, other), labels in self.partitions.items():
            if line == [member.family, member.alpha] and lam != member.lam:
                n_models = int(labels.max()) + 1
                if (other <= lam and n_models < least) or (other >= lam and n_models > most):
                    return n_models
        return int(self._partition_of(member, lam).max()) + 1

    def _partition_of(self, member, lam):
        """Clusters of all rows under a member's family and local penalty."""
        key = member.family, member.alpha, lam
        if key not in self.partitions:
            self.partitions[key] = self.whole.partition(*key)
        return self.partitions[key]

    def is_end(self, member):
        """Whether a member is an end of its family: clients' own models, or one for all."""
        return member.lam == 0.0 or self.is_fused(member)

    def is_fused(self, member):
        """Whether everything is fused."""
        return member.lam >= self.families[member.family].fused

    def is_first(self, member):
        """Whether a member has the local penalty that comes first."""
        return member.alpha == self.alphas.at(self.families[member.family], member.lam)

    def near(self, member, best):
        """Whether a member is not hopelessly behind another one."""
        change, error = self.difference(member, best)
        return change <= HOPELESS * error

    def simplest(self, members):
        """The best of some members, or the one of fewest models that is nearly as good."""
        best = self.best_of(members)
        if not self.prefers_simpler or not np.isfinite(best.value):
            return best
        robust = self._best_but_for_one(members, best)
        best = best if robust is None else robust
        near = [best]
        for member in members:
            fused = self.is_fused(member)
            looser = member.alpha is not None and member.alpha < best.alpha
            if looser and not (fused or member.stable):
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
            own = [m for m in near if self.is_fused(m) and self.is_first(m)]
            near = own or near
        best = self.best_of(near)
        if not best.refit or self.is_end(best):
            return best
        # Among equal partitions take the middle, farthest from where clusters split or fuse.
        like = sorted((m for m in near if m.refit and m.family == best.family), key=by_lam)
        inner = [m for m in like if not self.is_end(m)]
        return inner[len(inner) // 2]

    def _best_but_for_one(self, members, best):
        """The best member by ranks if a single unit makes another one the best by the mean.

        A model of few rows can extrapolate counts that are wrong by orders of magnitude.  None if
        no unit is such an outlier.
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
        weights = self.weights
        total = weights.sum()
        change = member.losses - other.losses
        mean = change.sum() / total
        n = max(np.count_nonzero(weights), 2)
        rest = change - mean * weights
        return float(mean), float(np.sqrt(n / (n - 1) * (rest**2).sum()) / total)

    def _ranks(self, member, other):
        """Signed-rank statistic of the units' losses, positive where a member is worse.

        One unit with a few outlying rows may decide the mean and its error, but not the ranks.
        """
        judges = self.weights > 0
        change = (member.losses - other.losses)[judges] / np.sqrt(self.weights[judges])
        change = change[np.abs(change) > TIE * np.abs(change).max(initial=0.0)]
        ranks = rankdata(np.abs(change))
        return float((np.sign(change) * ranks).sum() / max(np.sqrt((ranks**2).sum()), 1e-300))


def by_lam(member):
    """Key to sort members by."""
    return member.lam


def tied(a, b):
    """Whether losses differ by rounding only."""
    return abs(a - b) <= TIE * max(abs(a), abs(b))
