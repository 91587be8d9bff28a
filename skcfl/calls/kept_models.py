"""Calls that train one model for each client, which it keeps between calls."""

from __future__ import annotations

import numpy as np

from ..clients.draws import mixed
from ..clients.optimizers import Batches
from ..clients.training import TrainingTerms
from ..exceptions import MessageError
from ..numerics.conjugate_gradients import conjugate_gradients
from ..numerics.matrices import columns_of, quotient
from .answer_bounds import COUNTS
from .call import Call
from .descriptions import ClassStatistics
from .first_order import PLAIN, TRAINING, Objectives, Trains, seeds_of, train_all
from .summed import Moves

# Largest number of epochs in which the weights of a blend are learned.
MOST_EPOCHS = 60
# Number of last losses; their spread shows that the weights have settled (as in the public code).
SETTLED = 10
# Relative residual of a minimum of some parameters.
EXACT = 1e-15


class Keep(Call):
    """Let every client keep a model to go on from.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        Models.
    """

    down = {"w": "n p"}
    remembers = True

    def answer(cls, clients, w):
        clients.state.keep("model", clients.entries, w)
        return {}


class Recall(Trains):
    """Models that the clients keep, which they publish.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        Model of a client that keeps none, or does not answer.

    Returns
    -------
    w : ndarray of shape (n_clients, n_params)
    """

    free = frozenset()
    keep = "w"
    whole = True

    def answer(cls, clients, w):
        w, own = clients.state.recall("model", clients.entries, w), clients.model.own
        if own is not None:
            w[:, own] = clients.state.recall("own", clients.entries, w[:, own])
        clients.memory.keep(clients.at, w)
        return {"w": w}


class PartialUpdate(Trains):
    """Let every client train the model that it keeps, with the shared part replaced.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_shared)
        Values of the shared parameters.
    shared : ndarray of shape (n_params,) of bool
        Which they are.
    stages : list of tuple
        ``(steps, trained)``: steps of training, and the mask of the parameters trained.
    step_size, optimizer, batch_size
        As for ``LocalUpdate``.
    prototypes : ndarray of shape (n_classes, n_representation), default=None
        Points that the rows' representations are drawn to, by class; NaN where there is none.
    strength : float, default=0.0
        Factor of the mean squared distance to them.
    minimise : bool, default=False
        If True, the parameters that are not shared are first set to their minimum, with quadratic
        objectives.

    Returns
    -------
    w : ndarray of shape (n_clients, n_shared)
        The shared parameters after training.
    values : ndarray of shape (n_clients,)
        Objectives of the models before training, at that minimum if it is asked for.
    """

    down = {
        **{"w": "n s", "shared": "p", "stages": "", "step_size": "n", "optimizer": ""},
        **{"batch_size": "", "prototypes": "C q", "strength": "", "minimise": "", "draw": ""},
    }
    defaults = PLAIN | {"prototypes": None, "strength": 0.0, "minimise": False}
    up = {"w": "n s", "values": "n"}
    free = TRAINING | {"shared", "strength", "stages", "minimise"}
    remembers = True

    def is_of_classes(cls, arguments):
        # With a point for one class, the parameters move by the rows of this class.
        return arguments.get("prototypes") is not None

    def answer(
        cls, clients, w, shared, stages, draw, prototypes=None, strength=0.0, minimise=False, **how
    ):
        model, columns = _kept(clients, w.dtype), columns_of(shared)
        model[:, columns] = w
        if minimise:
            _minimise(clients, model, ~shared)
        values = _values(clients, model)
        for k, (steps, trained) in enumerate(stages):
            terms = TrainingTerms(None if trained.all() else trained, prototypes, strength)
            how["steps"] = np.full(clients.n_clients, steps)
            model = train_all(clients, model, seeds=seeds_of(clients, draw, k), terms=terms, **how)
        clients.state.keep("model", clients.entries, model)
        return {"w": model[:, columns], "values": values}


class KeptMoves(Moves, abstract=True):
    """Base of the calls that train kept models and add up their moves."""

    remembers = True

    def count(cls, sizes, arguments):
        p = sizes["s" if "s" in cls.words["moves"] else "p"]
        return sizes["n"] * p, sizes["n"] * (p + 1)

    def answer(cls, clients, theta, labels, weights, **how):
        weights = clients.client_weights if weights is None else weights
        start = theta[labels]
        said = cls.trains.answer(clients, w=start, **how)
        answers = {"moves": start - said["w"], "values": said["values"]}
        left_out = cls._add_up(answers, {"theta": theta, "labels": labels, "weights": weights})
        return {**answers, "non_finite": left_out} if left_out.any() else answers

    def each_move(cls, site, arguments):
        """As of :class:`Moves`, by the models that clients keep: others would train again."""
        start, shared = arguments["theta"][arguments["labels"]], arguments.get("shared")
        kept = _kept(site, start.dtype)
        return start, start - (kept if shared is None else kept[:, columns_of(shared)])


class PartialMoves(KeptMoves, trains=PartialUpdate, without={"prototypes", "strength"}):
    """Let every client train the model that it keeps, with the shared part replaced; add up.

    Parameters
    ----------
    theta : ndarray of shape (K, n_shared)
        Values of the shared parameters, by cluster.
    labels : ndarray of shape (n_clients,)
        Cluster of each client.
    shared, stages, step_size, optimizer, batch_size, minimise
        As of :class:`PartialUpdate`.
    weights : ndarray of shape (n_clients,), default=None
        Weights ``u_i`` of the clients; ``n_i`` by default.

    Returns
    -------
    moves : ndarray of shape (K, n_shared)
        Sums of ``u_i (theta_k - w_i)``, ``w_i`` the shared parameters after training.
    values : ndarray of shape (n_clients,)
        As of :class:`PartialUpdate`.
    """


class PrototypeUpdate(Call):
    """Let every client train the model that it keeps, its representations drawn to points.

    Parameters
    ----------
    prototypes : ndarray of shape (n_classes, n_representation) or None
        Points by class, NaN where there is none.
    strength : float
        Factor of the mean squared distance to them.
    steps, step_size, optimizer, batch_size
        As for ``LocalUpdate``.

    Returns
    -------
    means, counts
        As of :class:`~skcfl.calls.descriptions.ClassStatistics`, under the trained models.
    values : ndarray of shape (n_clients,)
        Objectives of the models before.
    """

    down = {
        **{"prototypes": "C q", "strength": "", "steps": "n", "step_size": "n"},
        **{"optimizer": "", "batch_size": "", "draw": ""},
    }
    defaults = PLAIN
    up = {"means": "n C q", "counts": "n C", "values": "n"}
    free = TRAINING | {"strength"}
    whole = False
    remembers = True
    about = "classes"
    bounds = {"counts": COUNTS}

    def answer(cls, clients, prototypes, strength, draw, **how):
        model = _kept(clients, clients.model.dtype)
        values, terms = _values(clients, model), TrainingTerms(None, prototypes, strength)
        model = train_all(clients, model, seeds=seeds_of(clients, draw), terms=terms, **how)
        clients.state.keep("model", clients.entries, model)
        said = ClassStatistics.answer(clients, w=model)
        return {"means": said["means"], "counts": said["counts"], "values": values}


class BlendedUpdate(Trains):
    """Let every client blend a model into the one that it keeps, and train.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        Models.
    blended : ndarray of shape (n_params,) of bool
        Parameters that are blended, the others being replaced.
    steps, step_size, optimizer, batch_size
        As for ``LocalUpdate``.
    blend_rate : float, default=1.0
        Step of the gradient descent on the weights of the blend.
    share : float, default=0.8
        Part of the rows that the weights are learned from, drawn anew in every call.
    tol : float, default=0.1
        Standard deviation of the last losses below which the weights are learned, the first
        time; later times take one epoch: a step, or one of every batch.

    Returns
    -------
    w : ndarray of shape (n_clients, n_params)
        Trained models, which the clients keep too.
    values : ndarray of shape (n_clients,)
        Objectives after blending.
    """

    down = {
        **{"w": "n p", "blended": "p", "steps": "n", "step_size": "n", "blend_rate": ""},
        **{"share": "", "tol": "", "optimizer": "", "batch_size": "", "draw": ""},
    }
    defaults = PLAIN | {"blend_rate": 1.0, "share": 0.8, "tol": 0.1}
    always_draws = True
    up = {"w": "n p", "values": "n"}
    free = TRAINING | {"blended", "blend_rate", "share", "tol"}
    remembers = True

    def answer(cls, clients, w, blended, blend_rate, share, tol, draw, **how):
        about = blend_rate, share, tol, how["batch_size"], draw
        model, values = _blend(clients, w, blended, *about)
        model = train_all(clients, model, seeds=seeds_of(clients, draw), **how)
        clients.state.keep("model", clients.entries, model)
        return {"w": model, "values": values}


class BlendedMoves(KeptMoves, trains=BlendedUpdate):
    """Let every client blend its cluster's model into the one that it keeps, and train; add up.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    labels : ndarray of shape (n_clients,)
        Cluster of each client.
    blended, steps, step_size, blend_rate, share, tol, optimizer, batch_size
        As of :class:`BlendedUpdate`.
    weights : ndarray of shape (n_clients,), default=None
        Weights ``u_i`` of the clients; ``n_i`` by default.

    Returns
    -------
    moves : ndarray of shape (K, n_params)
        Sums of ``u_i (theta_k - w_i)``, ``w_i`` the trained models.
    values : ndarray of shape (n_clients,)
        Objectives after blending.
    """


def _kept(clients, dtype):
    """Models that the clients keep, zeros of those that keep none."""
    nothing = np.zeros((clients.n_clients, clients.model.n_params), dtype=dtype)
    return clients.state.recall("model", clients.entries, nothing)


def _values(clients, w):
    return Objectives.answer(clients, w=w, own=None)["values"]


def _minimise(clients, w, free):
    """Set some parameters of models (n, p) to the minimum of quadratic objectives, in place."""
    model = clients.model
    if not model.quadratic:
        raise MessageError("minimise=True needs a model with quadratic objectives.")

    def work(block, slots):
        block, x = block.astype(np.float64), w[slots].astype(float)
        diagonal = np.where(free, model.hessian_diagonal(block, x), 0.0)
        x -= conjugate_gradients(
            lambda u: free * model.hessian_product(block, x, u),
            np.where(diagonal > 0, diagonal, 1.0),
            free * model.gradient(block, x),
            int(free.sum()),
            np.full(len(x), EXACT),
        )
        w[slots] = x

    clients.each(work)


def _blend(clients, w, blended, rate, share, tol, batch_size, draw):
    """Adaptive local aggregation: elementwise weights in [0, 1] by gradient descent.

    Returns the models and their objectives.
    """
    if not blended.any():
        return np.array(w), _values(clients, w)
    trained, blended = blended, columns_of(blended)
    known = clients.state.knows("model", clients.entries)
    begun = clients.state.knows("weights", clients.entries)
    out = np.array(w)
    old = clients.state.recall("model", clients.entries, w)[:, blended]
    weights = np.ones_like(old)
    weights = clients.state.recall("weights", clients.entries, weights)
    way = w[:, blended] - old
    seeds = mixed(seeds_of(clients, draw), 1)
    relative = getattr(clients.model, "unknown_scale", False)
    values = np.zeros(clients.n_clients, dtype=w.dtype)

    def work(block, slots):
        if not known[slots].any():
            values[slots] = clients.model.value(block, w[slots])
            return
        # The layers below stay as they are: the rows pass them once.
        sent = w[slots]
        model, rows, below, rest = clients.model.upper_layers(block, sent, trained)
        upper, size = sent[:, below:], model.clients_at_once(rows)
        if below and batch_size is not None:
            size *= max(rows.shape[1] // batch_size, 1)
        for some, part in rows.parts(size):
            values[slots[some]] = learn(model, part, upper[some], below, slots[some])
        values[slots] += rest

    def learn(model, block, x, below, slots):
        u, move, start = weights[slots], way[slots], old[slots]
        mine, x = columns_of(trained[below:]), np.ascontiguousarray(x)
        part = _some_rows(block, share, seeds[slots])
        n_rows = None if batch_size is None else min(batch_size, part.shape[1])
        room = model.workspace(part, n_rows, TrainingTerms(trained[below:]))
        most = np.where(begun[slots], 1, MOST_EPOCHS)
        most[~known[slots]] = 0
        losses, unit = [], None
        for t in range(int(most.max())):
            total = 0.0
            for batch, counts in _epoch(part, batch_size, mixed(seeds[slots], t)):
                x[:, mine] = start + move * u
                value, g = model.value_gradient(batch, x, room)
                g = g[:, mine]
                if relative:  # losses in units of the targets, which are no matter of the rate
                    if unit is None:
                        loss = value - model.penalties(x).astype(value.dtype)
                        unit = np.where(loss > 0, loss, 1.0)
                    value, g = value / unit, g / unit[:, None]
                moves = (counts > 0) & (t < most)
                u = np.where(moves[:, None], np.clip(u - rate * g * move, 0.0, 1.0), u)
                total = total + counts * value
            losses.append(total)
            if t >= SETTLED:
                calm = np.std(losses[-SETTLED:], axis=0) < tol
                most = np.where(calm, np.minimum(most, t + 1), most)
        x[:, mine] = start + move * u
        out[slots, below:], weights[slots] = x, u
        return model.value(block, x)

    clients.each(work, 2)
    here = np.flatnonzero(known)
    clients.state.keep("weights", clients.entries[here], weights[here])
    return out, values


def _epoch(block, batch_size, seeds):
    """Batches of an epoch, or all rows, and how much each counts in its client's epoch."""
    if batch_size is None:
        yield block, np.ones(len(seeds))
        return
    batches = Batches(block, batch_size, seeds)
    for k in range(int(batches.per_epoch.max())):
        yield batches.next(), (k < batches.per_epoch) / batches.per_epoch


def _some_rows(block, share, seeds):
    """Block in which a random part of each client's rows have all the weight."""
    n = block.weights.shape[1]
    key = mixed(seeds[:, None], np.arange(n)) / np.float64(2**64)
    key[np.arange(n) >= block.lengths[:, None]] = np.inf
    rank = np.argsort(np.argsort(key, axis=1), axis=1)
    chosen = rank < np.maximum(np.round(share * block.lengths), 1)[:, None]
    weights = block.weights * chosen
    total = weights.sum(axis=1, keepdims=True)
    weights = quotient(weights, total)
    return block.reweighted(weights)
