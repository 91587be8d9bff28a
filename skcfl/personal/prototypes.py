"""Means of the classes' representations: FedProto, and the mixed heads of FedPAC.

FedProto (Tan et al., 2022): clients send the mean of each class's representation, nothing else;
the server averages them by the rows; clients train with

    lam * mean squared distance of a row's representation to the prototype of its class

added to the loss, and predict the class of the nearest prototype.

FedPAC (Xu, Tong, Huang, 2023): clients train their head, then the shared body under the same pull;
the server averages the bodies, and client i gets the head ``sum_j a_ij head_j`` with

    a_i = argmin a' P_i a,  a >= 0, sum a = 1,   P_i = diag(v) + <h_i - h_j, h_i - h_l>_{jl}

where ``h_i`` stacks ``p_i(y) mean_i(y)``, the classes' shares times their mean representations,
and ``v_i`` is the variance of that estimate: bias and variance of the mixed head.  The paper's
``v_i`` is the variance of a client's n rows over n, which is 0 for one row; here a row of the mean
squared length of all clients' rows is added to its sum of squares.
"""

import numpy as np

from ..calls.descriptions import ClassStatistics
from ..calls.kept_models import PartialUpdate, PrototypeUpdate
from ..numerics.quantiles import weighted_median
from ..rounds.aggregation import aggregate_by_cluster
from ..rounds.aggregation.aggregator import lengths
from ..rounds.suspicion import ONE_LEAST, SIGMAS, limit, relative
from .shared_rounds import SharedUpdate

__all__ = [
    "HeadMixing",
    "PrototypeAverage",
    "mean_prototypes",
    "mixing_weights",
    "nearest_prototype_heads",
    "prototype_suspicions",
]

# Weights of other heads below which they are left out (the public code's).
LEAST_WEIGHT = 1e-3
# Variance of a client's means, over its squared distance from another, below which it is rounding.
LEAST_VARIANCE = 1e-10
# Most Newton steps of a programme, and the gain, over the objective, at which they end.
NEWTON_STEPS, EXACT = 500, 1e-14


def mean_prototypes(means, counts, before=None, aggregator=None):
    """Prototypes of the classes: means of the clients' means by the rows of each class.

    Parameters
    ----------
    means : ndarray of shape (n_clients, n_classes, n_representation)
        Means of the clients.
    counts : ndarray of shape (n_clients, n_classes)
        Weight of the rows that they are of.
    before : ndarray of shape (n_classes, n_representation), default=None
        Prototypes of classes that no client has; NaN if not given.
    aggregator : object, default=None
        Operator in place of the weighted means.

    Returns
    -------
    prototypes : ndarray of shape (n_classes, n_representation)
    """
    total = counts.sum(axis=0)[:, None]
    if aggregator is not None:
        n, n_classes, _ = means.shape
        classes = np.tile(np.arange(n_classes), n)
        messages = means.reshape(n * n_classes, -1)
        found = aggregate_by_cluster(aggregator, messages, classes, n_classes, counts.ravel())
        otherwise = np.full(found.shape, np.nan) if before is None else before
        return np.where(total > 0, found, otherwise)
    sums = np.einsum("nc,ncq->cq", counts, means)
    otherwise = np.full(sums.shape, np.nan) if before is None else np.array(before, dtype=float)
    return np.divide(sums, total, out=otherwise, where=total > 0)


def prototype_suspicions(means, counts, prototypes, weights, totals):
    """Distances of the clients' class means from the prototypes, as parts of the most expected.

    Parameters
    ----------
    means, counts
        As for :func:`mean_prototypes`, of clients that have rows.
    prototypes : ndarray of shape (n_classes, n_representation)
        Prototypes after aggregation.
    weights, totals : ndarray of shape (n_clients,)
        Their weights, and the total weights of their rows.

    Returns
    -------
    suspicions : ndarray of shape (n_clients,)
        Each class counts by the client's rows of it.
    """
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
    away = np.where(counts[:, :, None] > 0, means - prototypes, 0.0) * np.sqrt(share)[:, :, None]
    together = np.zeros(len(means), dtype=np.intp)
    away = relative(lengths(away.reshape(len(means), -1)), together, 1, weights, totals)
    return away / limit(away, SIGMAS, ONE_LEAST)


class PrototypeAverage(SharedUpdate):
    """Round of FedProto: the state's model is the prototypes, in one vector.

    Parameters
    ----------
    strength : float
        Factor of the mean squared distance to the prototypes.
    options : Options
        How clients train.
    average : Average, default=None
        A robust operator of it takes the place of the weighted means of the clients, and it has
        their suspicions then: the largest of all rounds, as networks learn to send their rows to
        the prototypes of whatever classes these are said to have.

    Attributes
    ----------
    prototypes : ndarray of shape (n_classes, n_representation) or None
        NaN of classes that have none.
    """

    def __init__(self, strength, options, average=None):
        super().__init__(average)
        self.strength, self.options = strength, options
        self.prototypes, self._said = None, None

    def ask(self, answers, state):
        """Class means and their weights, after the participants have trained."""
        pool, options = answers.who.pool, self.options
        how = options.local_steps, options.step_size, options.optimizer, options.batch_size
        about = self.prototypes, self.strength
        means, counts, values = pool.ask(PrototypeUpdate, *about, *how)
        if pool.answered is not None:
            means, counts = means[pool.answered], counts[pool.answered]
        self._said = means, counts
        return answers.heard(pool, values=values)

    def __call__(self, answers, state):
        """New prototypes, zero of classes that have none."""
        aggregator = self.average.aggregator
        self.prototypes = mean_prototypes(*self._said, self.prototypes, aggregator)
        if aggregator is not None:
            self._suspect(answers.who)
        return np.nan_to_num(self.prototypes).reshape(1, -1).astype(state.theta.dtype)

    def _suspect(self, who):
        """Note how far the participants are from the prototypes."""
        some = np.flatnonzero(who.weights > 0)
        if not len(some):
            return
        means, counts = (said[some] for said in self._said)
        totals = who.pool.client_weights[some]
        now = prototype_suspicions(means, counts, self.prototypes, who.weights[some], totals)
        known = self.average.suspicion
        known[who.members[some]] = np.maximum(known[who.members[some]], now)


def nearest_prototype_heads(prototypes, n_outputs):
    """Last layers with their largest output for the nearest prototype.

    ``-|r - P_c|^2`` is ``2 P_c' r - |P_c|^2`` but for a number that the classes have in common.

    Parameters
    ----------
    prototypes : ndarray of shape (n_classes, n_representation)
        NaN of classes that have none, which are never predicted.
    n_outputs : int
        1 for two classes: the output is the difference; else one per class.

    Returns
    -------
    weights : ndarray of shape (n_representation, n_outputs)
    biases : ndarray of shape (n_outputs,)
    """
    known = ~np.isnan(prototypes).any(axis=1)
    points = np.nan_to_num(prototypes)
    weights, biases = 2.0 * points, -np.einsum("cq,cq->c", points, points)
    biases = np.where(known, biases, -1e6)
    if n_outputs == 1:
        weights, biases = weights[1:] - weights[:1], biases[1:] - biases[:1]
    return weights.T, biases


def mixing_weights(h, v):
    """Weights of the clients' heads in each client's, the quadratic programmes above.

    Parameters
    ----------
    h : ndarray of shape (m, k)
        Shares of the classes times their mean representations.
    v : ndarray of shape (m,)
        Variances of these.

    Returns
    -------
    weights : ndarray of shape (m, m)
        Rows are not negative and sum to 1.

    Notes
    -----
    Newton's method on the dual of each programme, which has one variable for each column of ``h``
    and one for the sum of the weights: the time grows with the square of the clients.
    """
    # What is not finite ends the fit when the models are published.
    h, v = (np.nan_to_num(np.asarray(a, dtype=float), posinf=0.0, neginf=0.0) for a in (h, v))
    unit = max(np.abs(h).max(initial=0.0), np.sqrt(v.max(initial=0.0))) or 1.0
    h, v = h / unit, v / unit / unit
    h = h - h.mean(axis=0)
    if h.shape[1] > len(h):
        h = np.linalg.qr(h.T, mode="r").T  # the same distances in fewer columns
    out = np.empty((len(h), len(h)))
    for i in range(len(h)):
        away = h[i] - h
        variance = np.maximum(v, LEAST_VARIANCE * np.einsum("jk,jk->j", away, away) + 1e-30)
        a = _least_error(away / np.sqrt(variance[i]), variance / variance[i])
        a[a < LEAST_WEIGHT] = 0.0
        out[i] = a / a.sum()
    return out


def _least_error(away, v):
    """Weights ``a`` of the simplex for which ``|away' a|^2 + sum v a^2`` is least.

    Those of variables z are ``max(B z, 0)``, times the square roots of ``v``.
    """
    m, k = away.shape
    B = np.hstack([-away, np.ones((m, 1))]) / np.sqrt(v)[:, None]
    E = np.diag(np.repeat([1.0, 0.0], [k, 1]))
    e = 1.0 - E.diagonal()
    z = e / np.sum(1.0 / v)

    def dual(z, u):
        return z @ e - 0.5 * (z @ E @ z + np.square(np.maximum(u, 0.0)).sum())

    for _ in range(NEWTON_STEPS):
        u = B @ z
        active = B[u > 0]
        gradient = e - E @ z - B.T @ np.maximum(u, 0.0)
        step = np.linalg.solve(E + active.T @ active, gradient)
        rise, change, size = gradient @ step, B @ step, 1.0
        if rise <= EXACT * z[-1]:
            break
        now = dual(z, u)
        while size > EXACT and dual(z + size * step, u + size * change) < now + 1e-4 * size * rise:
            size *= 0.5
        if size <= EXACT:
            break  # what is left is rounding
        z = z + size * step
    a = np.maximum(u + change, 0.0) / np.sqrt(v)
    return a / a.sum()


class HeadMixing(SharedUpdate):
    """Round of FedPAC.

    Parameters
    ----------
    head : ndarray of shape (n_params,) of bool
        Parameters of the last layer; the others are the body.
    models : ndarray of shape (n_clients, n_params)
        Models that the clients begin with, which the rounds change.
    stages : list of tuple
        Steps, and trained parameters, as for ``PartialUpdate``.
    rate : ndarray of shape (n_clients,) or float
        Length of the steps.
    strength : float
        Factor of the mean squared distance to the prototypes.
    options : Options
        How clients train.
    average : Average, default=None
        How bodies are averaged; a robust operator of it also takes the place of the means of the
        prototypes, and mixes heads.

    Attributes
    ----------
    prototypes : ndarray of shape (n_classes, n_representation) or None
        Means of the clients' class means.
    weights : ndarray of shape (n_clients, n_clients)
        Weights of the heads when they were mixed last.
    """

    def __init__(self, head, models, stages, rate, strength, options, average=None):
        super().__init__(average)
        self.head, self.models, self.stages, self.rate = head, models, stages, rate
        self.strength, self.options = strength, options
        self.prototypes, self.weights = None, np.eye(len(models))
        self._said, self._means = None, None

    def ask(self, answers, state):
        """Statistics under the models sent, then models and class means after training."""
        pool = answers.who.pool
        said = pool.ask(ClassStatistics, self.models[answers.who.index])
        answers.heard(pool)
        said = [values if pool.answered is None else values[pool.answered] for values in said]
        pool, index = answers.who.pool, answers.who.index
        w, everything = self.models[index], np.ones(len(self.head), dtype=bool)
        rate = self.rate if np.ndim(self.rate) == 0 else self.rate[index]
        rule = self.options.optimizer, self.options.batch_size
        how = everything, self.stages, rate, *rule, self.prototypes, self.strength
        models, values = pool.ask(PartialUpdate, w, *how, known=True)
        there = slice(None) if pool.answered is None else pool.answered
        self._said = [values[there] for values in said]
        answers.heard(pool, models=models, values=values)
        if not self.head.all():
            means, counts, _ = answers.who.pool.ask(ClassStatistics, answers.models, known=True)
            self._means = means, counts  # zeros of silent clients
        return answers

    def __call__(self, answers, state):
        """New shared model: the mean body, and the mean head."""
        means, counts, squares = self._said
        total = np.maximum(counts.sum(axis=1), 1e-100)
        h = means * (counts / total[:, None])[:, :, None]
        h = h.reshape(len(h), -1)
        around = np.maximum(squares - np.einsum("nk,nk->n", h, h), 0.0)
        if self.average.aggregator is None:
            size = total @ squares / total.sum()
        else:
            size = weighted_median(squares, total)
        v = (around + size / total) / total
        who = answers.who
        some = np.flatnonzero(who.weights > 0)
        # Clients without rows take the mean head.
        weights = np.tile(who.weights / max(who.weights.sum(), 1e-300), (len(h), 1))
        weights[np.ix_(some, some)] = mixing_weights(h[some], v[some])
        members = who.members
        self.weights[np.ix_(members, members)] = weights
        theta = self.mean(answers, state, answers.models)
        heads = answers.models[:, self.head]
        self.models[np.ix_(members, np.flatnonzero(self.head))] = self._mixed(weights, heads)
        self.models[:, ~self.head] = theta[0, ~self.head]
        if self._means is not None:
            aggregator = self.average.aggregator
            self.prototypes = mean_prototypes(*self._means, self.prototypes, aggregator)
        return theta

    def _mixed(self, weights, heads):
        """Each client's head of all clients' heads (m, k), under its weights for them."""
        if self.average.aggregator is None:
            return weights @ heads
        mine, others = np.nonzero(weights)
        return aggregate_by_cluster(
            *(self.average.aggregator, heads[others], mine, len(heads), weights[mine, others])
        )
