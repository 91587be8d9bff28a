"""Judges of the models of a search: rows held out inside the clients, folds of a splitter."""

import numpy as np

from ..calls.first_order import OwnLosses
from ..exceptions import FederationError
from ..federation.lanes import asked_at_once
from ..federation.pool import NO_ROWS
from ..federation.replicas import can_replicate, replicas_of
from ..numerics.optimism import with_all_rows

__all__ = ["FoldsJudge", "HeldOutLoss"]

# Clients up to which there are few; folds for few and for more clients; numbers of clients from
# which only two folds, or one, are judged: with more clients there is less chance in a fold.
FEW, FEW_FOLDS, FOLDS, MANY, HUGE = 40, 5, 3, 400, 800
# Parameters of all clients' models from which one fold is judged, because fits are expensive, and
# the values of lam that a grid then has at most.
LARGE, FEW_LAMS = 250_000, 4
# Cap of a client's loss if clients may be false, in median losses.
MOST_LOSS = 3.0
# Least part of the weight that is left to judge by clients that have answered about everything.
LEAST_LEFT = 0.5
# Steps of the estimate of what the others would say.
POLISHES = 10
# Networks are trained once, on four fifths of the rows.
NETWORK_FOLDS = 5


def is_large(pool):
    """If True, linear clients have so many parameters that the search makes few fits."""
    return pool.can_answer("solve") and pool.n_clients * pool.n_params > LARGE


def comparable(losses, weights):
    """Losses of candidates that can be compared, where some clients left some unanswered.

    A client that gave no answer about one candidate judges none. If those who are left hold too
    few of the rows, a missing mean loss is that of the client under the others, plus what the
    candidate loses more elsewhere: Tukey's median polish, as some candidates are far off.

    Parameters
    ----------
    losses : ndarray of shape (n_candidates, n_units)
        Total losses of the rows of each unit, NaN without an answer.
    weights : ndarray of shape (n_units,)
        Weights of these rows.

    Returns
    -------
    losses : ndarray of shape (n_candidates, n_units)
    weights : ndarray of shape (n_units,)
        Zero for those who do not judge.
    """
    missing = np.isnan(losses) & (weights > 0)
    away = missing.any(axis=0)
    if weights[~away].sum() >= LEAST_LEFT * weights.sum():
        return np.where(away, 0.0, losses), np.where(away, 0.0, weights)
    judges = weights > 0
    means = losses[:, judges] / weights[judges]
    known, more = np.ma.masked_invalid(means), np.zeros((len(means), 1))
    for _ in range(POLISHES):
        of_client = np.ma.median(known - more, axis=0, keepdims=True).filled(0.0)
        more = np.ma.median(known - of_client, axis=1, keepdims=True).filled(np.inf)
    filled = np.zeros_like(losses)
    filled[:, judges] = weights[judges] * (of_client + more)
    return np.where(missing, filled, losses), weights


class HeldOutLoss:
    """Held-out loss of every client on its own rows.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    rng : RandomState
        Source of the deal.
    exact : bool, default=True
        If True, models are exact minimisers; fewer folds judge those that are trained.
    trusted : ndarray of shape (n_clients,) of bool, default=None
        Clients whose rows judge; all by default.
    folds : tuple of int, default=None
        How many folds there are, and how many of them judge; None depends on the clients.

    Attributes
    ----------
    pools : list of ClientPool
        The rows to fit to, one pool per fold, each with a ledger of its own.
    whole : ClientPool or None
        All rows, with a ledger of their own; None where models are trained.
    corrects : bool
        If True, losses are corrected to those of models of all rows.
    weights : ndarray of shape (n_clients,)
        Weights of the rows that judge.
    """

    #: The units whose losses vary, for standard errors.
    units = "clients"

    def __init__(self, pool, rng, exact=True, trusted=None, folds=None):
        n = pool.n_clients
        if not exact:
            n_folds, used = NETWORK_FOLDS, 1
        elif n <= FEW:
            n_folds = used = FEW_FOLDS
        else:
            n_folds, used = FOLDS, 1 if n > HUGE else 2 if n > MANY else FOLDS
        if is_large(pool):
            used = 1
        if folds is not None:
            n_folds, used = folds
        seeds = rng.randint(np.iinfo(np.int32).max, size=n_folds)
        self.pools, self.held = [], []
        for (train, held), seed in zip(pool.deal_folds(n_folds, rng, used), seeds, strict=False):
            train, held = train.lane(int(seed)), held.lane()
            held.ledger = train.ledger
            self.pools.append(train)
            self.held.append(held)
        self.trusted = np.ones(n, dtype=bool) if trusted is None else trusted
        #: The same of each fold.
        self.parts = [self._counted(held) for held in self.held]
        self.weights = sum(self.parts)
        # The gain from more rows is known for quadratic losses only.
        self.corrects = pool.model.quadratic and used == n_folds
        self.whole = pool.lane() if exact else None

    def replicate(self, ledger):
        """Let replicas of the clients at the server stand for them, if that shows no rows.

        Only for a search that refits the clients' own models: their Hessians are asked for then.

        Parameters
        ----------
        ledger : Ledger
            Where the exchange is booked.
        """
        parts = [self.whole, *self.pools, *self.held]
        if not self.corrects or not can_replicate(parts):
            return
        replicas = replicas_of(parts, ledger)
        if replicas is not None:
            self.whole, *rest = replicas
            self.pools, self.held = rest[: len(self.pools)], rest[len(self.pools) :]

    @staticmethod
    def can_judge(pool):
        """Whether a client has a row to hold out."""
        return bool((pool.client_sizes > 1).any())

    def _counted(self, held):
        """Weights of the rows held out, zero of clients that do not judge."""
        return np.where(self.trusted, held.client_weights, 0.0)

    def losses(self, k, models, ledger):
        """Total losses of each client's rows in fold k under its models, each (n_clients,).

        NaN for clients that gave no answer.
        """
        train, held = self.pools[k], self.held[k]
        weights, fitted = self._counted(held), train.client_weights
        pools = (held, train) if self.corrects else (held,)
        questions = [lambda lane, W=W: lane.ask(OwnLosses, W) for W in models]
        asked = [(pool, question) for question in questions for pool in pools]
        with np.errstate(over="ignore", invalid="ignore"):
            losses = asked_at_once(*asked, ledger=ledger)
            if self.corrects:
                pairs = zip(losses[::2], losses[1::2], strict=True)
                losses = [with_all_rows(*pair, held.client_weights, fitted) for pair in pairs]
            return [np.where(weights > 0, weights * some, 0.0) for some in losses]


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

    units, whole = "folds", None

    def __init__(self, folds, scoring, rng):
        seeds = rng.randint(np.iinfo(np.int32).max, size=len(folds))
        self.folds, self.scoring = folds, scoring
        self.pools = [f.pool(random_state=seed) for f, seed in zip(folds, seeds, strict=True)]
        self.parts = list(np.eye(len(folds)))
        self.weights = np.ones(len(folds))

    def losses(self, k, models, ledger):
        """Minus the scores of fold k at its place, a list of (n_folds,); a fold may be empty."""
        scores = self.folds[k].scores(np.array(models), self.scoring)
        out = np.zeros((len(models), len(self.folds)))
        if scores is None:
            self.weights[k] = 0.0
            if not self.weights.any():
                raise FederationError(f"cv: {NO_ROWS}.")
        else:
            out[:, k] = np.where(np.isnan(scores), np.inf, -scores)
        return list(out)
