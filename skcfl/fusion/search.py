r"""Choice of lam, and of what comes with it, by the models that a fit returns.

A *family* is what one graph and one penalty give over lam: from the clients' own models at 0 to
one model for all where everything fuses.  Each of its members may be the penalised models or
the models refitted to each cluster's pooled rows.  A *judge* holds rows out inside the clients:
all members of all families are fitted to the others, roughly, each from the one before, and
judged by their loss on the rows held out.  The grids hold both ends, and around the best member
other values are tried; where it is at an end of a grid that is not an end of the family,
the grid grows.  Local penalties compete at the best member and at both ends.

Among members that are not worse than the best by more than `SIMPLER` standard errors of the
difference, one model for all by `ONE_MODEL`, the one with fewest models is taken: on a table
without differences some member is better than the pooled model by chance.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from sklearn.utils.parallel import Parallel, delayed

from ..federation.ledger import Ledger
from ..numerics.by_cluster import numbered

__all__ = ["Family", "FoldsJudge", "Judge", "ModelSearch"]

# Folds of the rows, where clients are few, else; and numbers of clients from which two of these
# or one judges: the more clients, the less chance there is in a fold.
FEW, FEW_FOLDS, FOLDS, MANY, HUGE = 40, 5, 3, 400, 1500
# Networks are trained once, on four fifths of the rows.
NETWORK_FOLDS = 5
# Accuracy of the fits that are judged, and iterations of each.
SEARCH_TOL, SEARCH_ITERATIONS = 1e-3, 200
# Most values of lam beyond each end of a grid, and most tried around the best ones.
MAX_BEYOND, ROUNDS = 6, 2
# Differences of losses below this fraction are none.
TIE = 1e-9
# Standard errors within which one model for all wins, within which the fewest models win, and
# beyond which nothing is looked into.
ONE_MODEL, SIMPLER, HOPELESS = 1.25, 0.5, 2.5


@dataclass
class Family:
    """What one graph and one penalty give over lam.

    Attributes
    ----------
    name : dict of str to str
        What tells it from the others, to be published.
    problem : callable
        ``problem(pool)``: the fusion problem of a pool.
    solve : callable
        ``solve(problem, lam, state)`` returns a Result, to the accuracy of a search, and a
        state to go on from.  With ``lam=0`` the clients' own models, with ``lam=inf`` those where
        everything fuses.
    refit : callable
        ``refit(problem, labels, theta)`` returns each cluster's model on its pooled rows.
    refits : tuple of bool
        Whether the penalised models, the refitted ones, or both compete.
    lams : ndarray
        Positive values of lam to begin with, ascending.
    fused : float
        The value from which on everything is fused; infinite where nothing ever is.
    grows : bool, default=True
        Whether the ends and values beyond those given may be tried.
    refines : bool, default=True
        Whether values between them may be tried too.
    """

    name: dict
    problem: Callable
    solve: Callable
    refit: Callable
    refits: tuple
    lams: np.ndarray
    fused: float = np.inf
    grows: bool = True
    refines: bool = True

    def first(self):
        """The values of lam to begin with, the ends among them."""
        if not self.grows:
            return list(self.lams)
        inner = [float(lam) for lam in self.lams if 0.0 < lam < self.fused]
        return [0.0, *inner, *([self.fused] if np.isfinite(self.fused) else [])]


class Judge:
    """Rows held out inside the clients: every client judges its own models.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    rng : RandomState
        Source of the deal.
    exact : bool, default=True
        Whether models are solved for; fewer folds judge those that are trained.

    Attributes
    ----------
    pools : list of ClientPool
        The rows to fit to, one pool a fold, each with a ledger of its own.
    weights : ndarray of shape (n_clients,)
        Weights of the rows that judge.
    """

    #: The units whose losses vary, for standard errors.
    units = "clients"

    def __init__(self, pool, rng, exact=True):
        n = pool.n_clients
        if not exact:
            n_folds, used = NETWORK_FOLDS, 1
        elif n <= FEW:
            n_folds = used = FEW_FOLDS
        else:
            n_folds, used = FOLDS, 1 if n > HUGE else 2 if n > MANY else FOLDS
        seeds = rng.randint(np.iinfo(np.int32).max, size=n_folds)
        self.pools, self.held = [], []
        for (train, held), seed in zip(pool.deal_folds(n_folds, rng)[:used], seeds, strict=False):
            ledger = Ledger()
            train, held = train.with_ledger(ledger), held.with_ledger(ledger)
            train.reseed(seed)
            self.pools.append(train)
            self.held.append(held)
        self.weights = sum(held.client_weights for held in self.held)

    @staticmethod
    def can_judge(pool):
        """Whether a client has a row to hold out."""
        return bool((pool.client_sizes > 1).any())

    def losses(self, k, W):
        """Total loss of each client's rows in fold k under its model, (n_clients,)."""
        held = self.held[k]
        with np.errstate(over="ignore", invalid="ignore"):
            loss = held.objectives(W).astype(float) - held.penalties(W)
            loss = np.where(held.client_weights > 0, held.client_weights * loss, 0.0)
        return np.where(np.isnan(loss), np.inf, loss)


class FoldsJudge:
    """Folds of a splitter and a score: every fold judges.

    Parameters
    ----------
    folds : list of Fold
        Training and test rows.
    scoring : str, scorer or None
        What is to be large on the test rows; None is minus the mean loss.
    rng : RandomState
        Source of the seeds of the folds' pools.
    """

    units = "folds"

    def __init__(self, folds, scoring, rng):
        seeds = rng.randint(np.iinfo(np.int32).max, size=len(folds))
        self.folds, self.scoring = folds, scoring
        self.pools = [f.pool(random_state=seed) for f, seed in zip(folds, seeds, strict=True)]
        self.weights = np.ones(len(folds))

    def losses(self, k, W):
        """Minus the score of fold k at its place, (n_folds,)."""
        score = float(self.folds[k].scores(W[None], self.scoring)[0])
        out = np.zeros(len(self.folds))
        out[k] = np.inf if np.isnan(score) else -score
        return out


@dataclass
class Member:
    """One set of models and how it was judged."""

    family: int
    alpha: float | None
    lam: float
    refit: bool
    losses: np.ndarray = field(repr=False)
    n_models: float

    def __post_init__(self):
        self.value = np.nan


class ModelSearch:
    """Choice among families of models, by a judge.

    Parameters
    ----------
    families : list of Family
        What competes.
    judge : Judge or FoldsJudge
        The rows.
    alphas : list of float
        Local penalties to try; the first is that of the search of lam.  Empty where there is
        nothing to choose.
    simpler : bool, default=True
        Whether fewer models are preferred within `SIMPLER` standard errors.
    n_jobs : int or None, default=None
        Folds at a time, in threads.
    verbose : int, default=0
        Whether to print a line a member.
    """

    def __init__(self, families, judge, alphas=(), simpler=True, n_jobs=None, verbose=0):
        self.families, self.judge, self.simpler = families, judge, simpler
        self.alphas = list(alphas) or [None]
        self.n_jobs, self.verbose = n_jobs, verbose
        self.members = {}
        self.problems = [{} for _ in judge.pools]
        self.refitted = [{} for _ in judge.pools]
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
        first = self.alphas[0]
        self._try([(f, first, family.first()) for f, family in enumerate(self.families)])
        self._look_around(first)
        if len(self.alphas) > 1:
            self._try_alphas()
        self.best = self._choose()
        self._note_edge()
        for pool in self.judge.pools:
            ledger.take_over(pool.ledger)
        return self.best

    # ----------------------------------------------------------------------------- trying

    def _try(self, tasks):
        """Judge members: a list of family, alpha and values of lam."""
        done = Parallel(n_jobs=self.n_jobs, prefer="threads")(
            delayed(self._walk)(k, tasks) for k in range(len(self.judge.pools))
        )
        for parts in zip(*done, strict=True):
            key = parts[0][0]
            losses = sum(part[1] for part in parts)
            member = Member(*key, losses, float(np.mean([part[2] for part in parts])))
            member.value = float(losses.sum() / self.judge.weights.sum())
            self.members[key] = member
            if self.verbose:
                name = ", ".join(f"{k}={v}" for k, v in self.families[key[0]].name.items())
                print(
                    f"{name}, lam {member.lam:.4g}{', refitted' if member.refit else ''}: "
                    f"{member.n_models:.3g} models, held-out loss {member.value:.6g}"
                )

    def _walk(self, k, tasks):
        """Members of some families on the rows of fold k, each from the one before."""
        out = []
        for f, alpha, lams in tasks:
            family, state = self.families[f], None
            problem = self._problem(k, f, alpha)
            for lam in sorted(lams):
                end = lam == 0.0 or lam >= family.fused
                at = lam if lam == 0.0 or not end else np.inf
                result, after = family.solve(problem, at, None if end else state)
                state = state if end else after
                labels = numbered(result.labels)
                for refit in family.refits:
                    W = self._refit(k, f, alpha, problem, labels, result) if refit else None
                    W = result.params if W is None else W
                    key = (f, alpha, float(lam), refit)
                    out.append((key, self.judge.losses(k, W), int(labels.max()) + 1))
        return out

    def _problem(self, k, f, alpha):
        problems = self.problems[k]
        if (f, alpha) not in problems:
            pool = self.judge.pools[k]
            if alpha is not None:
                if alpha not in problems:
                    problems[alpha] = pool.penalised(alpha)
                pool = problems[alpha]
            problems[f, alpha] = self.families[f].problem(pool)
        return problems[f, alpha]

    def _refit(self, k, f, alpha, problem, labels, result):
        """Refitted models of the clients; equal partitions are refitted once."""
        key = alpha, labels.tobytes()
        if key not in self.refitted[k]:
            theta = np.zeros((labels.max() + 1, result.params.shape[1]))
            theta[labels] = result.params
            self.refitted[k][key] = self.families[f].refit(problem, labels, theta)
        return self.refitted[k][key][labels]

    # ------------------------------------------------------------------------ around the best

    def _look_around(self, alpha):
        """Values beyond the end of a grid where the best is there, and beside the best."""
        for _ in range(MAX_BEYOND):
            tasks = {}
            for member in self._leaders(alpha):
                beyond = self._beyond(member)
                if beyond is not None:
                    tasks.setdefault((member.family, alpha), set()).add(beyond)
            if not tasks:
                break
            self._try([(*key, lams) for key, lams in tasks.items()])
        for _ in range(ROUNDS):
            tasks = {}
            for member in self._leaders(alpha):
                tasks.setdefault((member.family, alpha), set()).update(self._beside(member))
                if member.refit:
                    for f, lam in self._between_partitions(member):
                        tasks.setdefault((f, alpha), set()).add(lam)
            tasks = [(*key, lams) for key, lams in tasks.items() if lams]
            if not tasks:
                break
            self._try(tasks)

    def _leaders(self, alpha):
        """The best penalised and the best refitted member, if not hopelessly behind the other."""
        leaders = []
        for refit in (False, True):
            some = [m for m in self.members.values() if m.refit == refit and m.alpha == alpha]
            if some:
                leaders.append(self._best_of(some))
        best = min(leaders, key=_value)
        return [m for m in leaders if self._near(m, best)]

    def _near(self, member, best):
        change, error = self.difference(member, best)
        return change <= HOPELESS * error

    def _between_partitions(self, best):
        """Where partitions as good as the best are next to much coarser or finer ones."""
        out = []
        for f, family in enumerate(self.families):
            line = [m for m in self.members.values() if (m.family, m.refit) == (f, True)]
            line = sorted((m for m in line if m.alpha == best.alpha and m.lam > 0.0), key=_lam)
            if not (family.grows and family.refines):
                continue
            for a, b in zip(line[:-1], line[1:], strict=True):
                near = self._near(a, best) or self._near(b, best)
                if near and a.n_models - b.n_models > 1.0:
                    out.append((f, float(np.sqrt(a.lam * b.lam))))
        return out

    def _lams(self, member):
        """Values of lam tried in the family of a member, with its alpha and kind."""
        like = member.family, member.alpha, member.refit
        return sorted(m.lam for m in self.members.values() if (m.family, m.alpha, m.refit) == like)

    def _beyond(self, member):
        """The next value beyond the grid where the best is its first or last positive one."""
        family, lams = self.families[member.family], self._lams(member)
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
        family, lams = self.families[member.family], self._lams(member)
        refines = family.grows and family.refines
        if not refines or member.lam == 0.0 or member.lam >= family.fused:
            return []
        place, out = lams.index(member.lam), []
        for other in lams[max(place - 1, 0) : place] + lams[place + 1 : place + 2]:
            if other > 0.0 and not self._same(member, other):
                out.append(float(np.sqrt(other * member.lam)))
        return out

    def _same(self, member, lam):
        other = self.members[member.family, member.alpha, lam, member.refit]
        return _equal(other.value, member.value)

    def _try_alphas(self):
        """Other local penalties at the best member and at both ends."""
        first, *others = self.alphas
        best = [(m.family, m.lam) for m in self._leaders(first)]
        ends = [
            (f, lam)
            for f, _ in best
            for lam in self.families[f].first()[:: max(len(self.families[f].first()) - 1, 1)]
        ]
        tried = {}
        for f, lam in {*best, *ends}:
            tried.setdefault(f, set()).add(lam)
        for alpha in others:
            self._try([(f, alpha, lams) for f, lams in sorted(tried.items())])

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
        """The best member; one of another local penalty only where that clearly helps."""
        members = list(self.members.values())
        first = self._simplest([m for m in members if m.alpha == self.alphas[0]])
        others = [m for m in members if m.alpha != self.alphas[0]]
        best = self._best_of(others) if others else first
        change, error = self.difference(best, first)
        margin = error if self.simpler else 0.0
        if change < -margin:
            first = self._simplest([m for m in others if m.alpha == best.alpha])
        if not np.isfinite(first.value):
            raise ValueError("No model has a finite score on the rows held out.")
        return first

    def _simplest(self, members):
        """The best of some members, or the one of fewest models that is nearly as good."""
        best = self._best_of(members)
        if not self.simpler or not np.isfinite(best.value):
            return best
        near = [best]
        for member in members:
            change, error = self.difference(member, best)
            fused = member.lam >= self.families[member.family].fused
            if change <= (ONE_MODEL if fused else SIMPLER) * error:
                near.append(member)
        fewest = min(m.n_models for m in near)
        near = [m for m in near if m.n_models == fewest]
        best = self._best_of(near)
        if not best.refit or best.lam == 0.0 or best.lam >= self.families[best.family].fused:
            return best
        # Partitions that are as good: as far as can be from where clusters part or fuse.
        like = sorted((m for m in near if m.refit and m.family == best.family), key=_lam)
        inner = [m for m in like if 0.0 < m.lam < self.families[best.family].fused]
        return inner[len(inner) // 2]

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

    def _note_edge(self):
        """What to say where the best value is at an end of the values that may be tried."""
        best, family = self.best, self.families[self.best.family]
        lams = sorted({m.lam for m in self.members.values() if m.family == best.family})
        if len(lams) < 3 or best.lam == 0.0 or best.lam >= family.fused:
            return
        if best.lam in (lams[0], lams[-1]):
            end = "least" if best.lam == lams[0] else "largest"
            self.warning = (
                f"The best lam, {best.lam:.4g}, is the {end} of those tried. Try others beyond it."
            )

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
        if self.alphas != [None]:
            table["alpha"] = np.array([m.alpha for m in order])
        table["lam"] = np.array([m.lam for m in order])
        table["n_clusters"] = np.array([m.n_models for m in order])
        table["criterion"] = np.array([m.value for m in order])
        table["standard_error"] = np.array([self.difference(m, self.best)[1] for m in order])
        table["chosen"] = np.array([m is self.best for m in order])
        return table

    def along(self, member):
        """Members that differ from one in lam only, ascending."""
        like = member.family, member.alpha, member.refit
        some = [m for m in self.members.values() if (m.family, m.alpha, m.refit) == like]
        return sorted(some, key=_lam)


def _lam(member):
    return member.lam


def _value(member):
    return member.value


def _equal(a, b):
    return abs(a - b) <= TIE * max(abs(a), abs(b))
