r"""Mixtures of shared models for the rows of each client: FedEM (Marfoq et al., 2021).

    J = - sum_i sum_r log sum_k pi_ik exp(-loss_k(r) / phi) + (n / d) log phi
        + (n / K) sum_k alpha / 2 |theta_k|^2 / phi

over all rows r of the clients i, with d the degree of the loss and phi = 1 where the dispersion is
known.  A round:

    q_k(r)   ~ pi_ik exp(-loss_k(r) / phi)                      at the clients
    pi_ik    = mean of q_k over i's rows, and q again, S times  kept there
    theta_k <- less  sum_i sum_r q_k(r) loss_k(r)  + penalty    by sums, or by local steps
    phi      = d (sum_i sum_r sum_k q_k loss_k + penalty) / n

============  ======================================  ==========================
paper         here                                    parameter
============  ======================================  ==========================
M             ``len(theta)``                          ``n_clusters``
pi_t          ``shares[i]``
q             at the clients
theta_m       ``state.theta[k]``                      ``init``
S = 1         ``share_steps``                         ``share_steps``
============  ======================================  ==========================

J never rises: each line lowers it or a bound that touches it. Linear models of few parameters take
a Newton step on sums of gradients and Hessians, with a curvature that never overshoots, halved
where the loss has none; others train local steps on rows weighted by q, which may raise it.
"""

import numpy as np

from ..calls.first_order import Losses
from ..calls.mixtures_asked import Mixture, MixtureSums, MixtureUpdate
from ..federation.result import Result
from ..numerics.newton import MAX_DENSE, solve_scaled
from .choice import ChoiceRule
from .loop import run_rounds
from .record import RoundRecord
from .safeguards import Safeguard
from .state import Answers, Draw, State, weighted_mean
from .stop import StopRule
from .update import UpdateRule

__all__ = ["Responsibilities", "fit_mixture", "fit_shares", "share_weights", "update_shares"]

# Least dispersion, relative to that of the start.
LEAST = 1e-10
# Largest number of exchanges in which the shares of new clients are found.
SHARE_CALLS = 20
# Iterations of the shares in one exchange.
SHARE_STEPS = 10
# Part of the way to other shares, at which their likelihood has its curvature.
AWAY = 0.05
# Change of the shares in one exchange that ends them.
SHARE_TOL = 1e-6


class Responsibilities(ChoiceRule):
    """The clients' shares of the models; a client counts to the model of its largest share.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    theta : ndarray of shape (K, n_params)
        Starts.
    dispersion : float
        Dispersion of the losses at the start.
    train : dict or None
        Parameters of ``MixtureUpdate``; None is a Newton step on
        sums.
    share_steps : int, default=1
        Steps of the clients' shares in a round.

    Attributes
    ----------
    shares : ndarray of shape (n_clients, K)
    dispersion : float
    """

    def __init__(self, pool, theta, dispersion, train=None, share_steps=1):
        model, self.share_steps = pool.model, share_steps
        self.K, self.model, self.train = len(theta), model, train
        self.shares = np.full((pool.n_clients, self.K), 1.0 / self.K)
        self.dispersion, self.least = dispersion, LEAST * dispersion
        self.degree = model.loss_degree if model.unknown_scale else None

    def ask(self, who, state, gradients=""):
        """Responsibilities, and what the update needs of them."""
        pool, mine = who.pool, self.shares[who.index]
        if self.train is None:
            answer = pool.ask(MixtureSums, state.theta, mine, self.dispersion, self.share_steps)
        else:
            more = {**self.train, "share_steps": self.share_steps}
            answer = pool.ask(MixtureUpdate, state.theta, mine, self.dispersion, **more)
        shares, values, scatter, *self.sums = answer
        answers = Answers(who).heard(pool, values=values)
        here = slice(None) if pool.answered is None else pool.answered
        who, self.heard, scatter = answers.who, shares[here], scatter[here]
        self.weight = float(who.weights.sum())
        self.penalty = 0.5 * float(((state.theta**2) @ self.model.decay).sum()) / self.K
        answers.values = answers.values + self.constant()
        self.scatter = weighted_mean(scatter, who.weights)
        return answers

    def constant(self):
        """Penalty that all clients' objectives have in common."""
        scale = np.log(self.dispersion) / self.degree if self.degree else 0.0
        return scale + self.penalty / self.dispersion

    def choose(self, answers, state, final=False):
        """Models of the largest shares, which are new, as is the dispersion."""
        self.earlier = self.shares.copy(), self.dispersion
        self.shares[answers.who.index] = self.heard
        if self.degree:
            new = self.degree * (self.scatter + self.penalty)
            self.dispersion = max(float(new), self.least)
        return self.heard.argmax(axis=1)

    def take_back(self):
        """Undo the last round: its shares are those of models that were too far away."""
        self.shares, self.dispersion = self.earlier


class MixtureStep(UpdateRule):
    """New models from the sums of a round."""

    def __init__(self, rule):
        self.rule = rule

    def ask(self, answers, state):
        """Nothing more."""
        return answers

    def __call__(self, answers, state):
        """New models; a model without participants stays."""
        rule, theta = self.rule, state.theta
        if rule.train is not None:
            moves, masses = rule.sums
            unit = np.where(masses > 0, masses, 1.0)[:, None]
            return theta + (moves / unit).astype(theta.dtype)
        gradients, hessians = (part.copy() for part in rule.sums)
        decay = rule.weight / rule.K * rule.model.decay
        gradients += decay * theta
        np.einsum("kpp->kp", hessians)[:] += decay
        return theta - solve_scaled(rule.model.pin(hessians), gradients)


class HalvedMixtureSteps(Safeguard):
    """Models with a higher objective at the same clients after the step go half of it back.

    Starts under which a row overflows go half of the way to `start`.
    """

    def __init__(self, rule, start):
        self.rule, self.last = rule, (None, 0.5 * np.finfo(float).max, start)

    def instead(self, answers, state):
        """Half of the last step, where the objective rose."""
        now = weighted_mean(answers.values, answers.who.weights)
        who, before, theta = self.last
        most = before + 64 * np.finfo(float).eps * abs(before)
        if (who is None or who is answers.who) and not now <= most:
            self.rule.take_back()
            return 0.5 * (theta + state.theta)
        self.last = answers.who, now, state.theta
        return None


class StillModels(StopRule):
    """Rounds end when the models hardly move for a window: shares are soft, labels may flip."""

    rounds = 0

    def __call__(self, state):
        self.rounds = self.rounds + 1 if state.change < self.tol else 0
        return self.ended

    @property
    def ended(self):
        """True if the rounds may end."""
        return self.rounds >= self.window


def start_dispersion(pool, theta):
    """Dispersion under which each client's best model explains its rows, 1 where it is known."""
    if not pool.model.unknown_scale:
        return 1.0
    best = pool.ask(Losses, theta, whole=True).min(axis=1)
    best = np.nan_to_num(best, nan=0.0, posinf=0.0)
    found = pool.model.loss_degree * weighted_mean(best, pool.client_weights)
    return found if found > 0 else 1.0


def fit_mixture(pool, theta, options, share_steps=1):
    """Fit shared models and the clients' shares of them.

    Parameters
    ----------
    pool : ClientPool
        The federation.
    theta : ndarray of shape (K, n_params)
        Starts.
    options : Options
        How to run.
    share_steps : int, default=1
        Steps of the clients' shares in a round.

    Returns
    -------
    result : Result
        ``extra`` has "shares" (n_clients, K) and "dispersion".
    """
    exact = pool.can_answer("mixture_sums") and pool.n_params <= MAX_DENSE
    train = None
    if not exact:
        rate = options.step_size
        if rate is None:
            rate = 1.0 / np.maximum(pool.spectrum()[0], 1e-12).max()
        train = {
            "steps": options.local_steps,
            "rate": rate,
            "optimizer": options.optimizer,
            "batch_size": options.batch_size,
        }
    rule = Responsibilities(pool, theta, start_dispersion(pool, theta), train, share_steps)
    weights = pool.client_weights
    draw = Draw(pool, options.participation, pool.random_state, weights)
    dtype = float if exact else pool.dtype
    state = State(np.array(theta, dtype=dtype), np.full(pool.n_clients, -1))
    record = RoundRecord(pool.ledger, rule, options.truth)
    stop = StillModels(options.tol, options.window)
    guards = [HalvedMixtureSteps(rule, pool.start())] if exact else []
    state = run_rounds(
        state, draw, rule, MixtureStep(rule), record, stop, options.max_iter, guards
    )
    about = state.theta, rule.shares, rule.dispersion
    shares, values, _ = pool.ask(Mixture, *about, searching=False)
    rule.penalty = 0.5 * float(((state.theta**2) @ pool.model.decay).sum()) / len(theta)
    here = slice(None) if pool.answered is None else pool.answered
    objective = weighted_mean(values[here] + rule.constant(), weights[here])
    # Clients without rows have the shares of all.
    unknown = ~shares.any(axis=1)
    shares[unknown] = weights[~unknown] @ shares[~unknown] / weights[~unknown].sum()
    history = record.history.arrays()
    return Result(
        cluster_params=state.theta,
        labels=shares.argmax(axis=1),
        objective=objective,
        n_iter=len(history["objective"]),
        history=history,
        shortfall=""
        if options.tol == 0 or options.budget or stop.ended
        else f"After max_iter={options.max_iter} rounds the models still change by "
        f"{state.change:.2g} (relative; tol={options.tol:g}). Increase max_iter or tol.",
        extra={"shares": shares, "dispersion": rule.dispersion},
    )


def fit_shares(pool, theta, dispersion, start):
    """Shares of clients in models that stay, (n_clients, K): maximum likelihood, by EM."""
    shares = np.tile(start, (pool.n_clients, 1))
    for _ in range(SHARE_CALLS):
        new = pool.ask(Mixture, theta, shares, dispersion, SHARE_STEPS)[0]
        new = np.where(new.any(axis=1, keepdims=True), new, shares)  # of clients without rows
        moved, shares = np.abs(new - shares).max(), new
        if moved < SHARE_TOL:
            break
    return shares


def update_shares(pool, theta, dispersion, before, older):
    """Shares of clients with new rows, (n_clients, K): maximum likelihood, by EM.

    Parameters
    ----------
    pool : ClientPool
        The clients with their new rows.
    theta : ndarray of shape (K, n_params)
        Models, which stay.
    dispersion : float
        Dispersion of the losses.
    before : ndarray of shape (n_clients, K)
        Shares so far: the mean responsibilities of the old rows, which are kept.
    older : ndarray of shape (n_clients,)
        Weights of the old rows, see :func:`share_weights`.
    """
    # The likelihood is concave, and EM never leaves a share of zero.
    shares = 0.5 * (before + 1.0 / len(theta))
    part = (pool.client_weights / np.maximum(pool.client_weights + older, 1e-300))[:, None]
    for _ in range(SHARE_CALLS * SHARE_STEPS):
        q = pool.ask(Mixture, theta, shares, dispersion)[0]
        new = before + part * (q - before)
        moved, shares = np.abs(new - shares).max(), new
        if moved < SHARE_TOL / SHARE_STEPS:
            break
    return shares


def share_weights(pool, theta, dispersion, shares):
    """How many rows of known models say as much of the shares as the clients' rows, (n_clients,).

    The weights of the rows less the share of missing information, which is the rate of EM: how
    much of a step away from the shares is left after an iteration.  Weights of clients that do not
    answer are NaN.
    """

    def asked(at):
        q = pool.ask(Mixture, theta, at, dispersion)[0]
        return q if pool.answered is None else np.where(pool.answered[:, None], q, np.nan)

    K = len(theta)
    start = (1.0 - AWAY) * shares + AWAY / K
    before = asked(start)
    missing = size = 0.0
    for vertex in np.eye(K):
        step = AWAY * (vertex - start)
        moved = asked(start + step) - before
        missing = missing + (step * moved / start).sum(axis=1)
        size = size + (step * step / start).sum(axis=1)
    # One model has no other shares.
    known = 1.0 - np.divide(missing, size, out=np.zeros_like(size), where=size > 0)
    return pool.client_weights * np.maximum(known, 0.0)
