"""Calls about losses, gradients and training."""

import numpy as np

from ..clients.draws import mixed
from ..clients.training import descend, meta_train, train
from .answer_bounds import LABELS
from .call import Call

#: Arguments that say how clients train, which are not counted.
TRAINING = frozenset({"steps", "step_size", "rho", "optimizer", "batch_size", "draw"})
#: How they train unless said.
PLAIN = {"optimizer": "sgd", "batch_size": None}


def seeds_of(clients, draw, stage=0, slots=slice(None)):
    """Seeds of the clients' batches, None where they take all rows."""
    if draw is None:
        return None
    seeds = mixed(*draw, clients.places[slots])
    return mixed(seeds, stage) if stage else seeds


class Present(Call):
    """Who answers: nothing goes down, nothing comes up."""

    def answer(cls, clients):
        return {}


class Losses(Call):
    """Mean loss of each client under each model, without the local penalty.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.

    Returns
    -------
    losses : ndarray of shape (n_clients, K)
        NaN for silent clients, or zero if the call requires all.
    """

    down = {"theta": "K p"}
    up = {"losses": "n K"}
    whole = False
    precise = False
    effort = "K"

    def kernel(cls, clients, block, slots, theta):
        return (clients.model.losses(block, theta),)

    def fill(cls, pool, answers, lost, arguments, start, whole):
        answers["losses"][lost] = 0.0 if whole else np.nan


class BestResponse(Losses):
    """Losses, best model and gradient at the best model, in one pass over the rows.

    Parameters
    ----------
    theta : ndarray of shape (K, n_params)
        Models.
    fixed : ndarray of shape (n_clients,), default=None
        Clients with a non-negative entry are sent that model only and keep it; their
        losses under the other models come back as infinity.

    Returns
    -------
    losses : ndarray of shape (n_clients, K)
        Without the local penalty.
    choice : ndarray of shape (n_clients,)
        Model of least loss.
    gradients : ndarray of shape (n_clients, n_params)
        Gradient of each client's objective, with the local penalty, at its choice.
    """

    down = {"theta": "K p", "fixed": "n"}
    defaults = {"fixed": None}
    up = {"losses": "n K", "choice": "n", "gradients": "n p"}
    searched = True
    bounds = {"choice": LABELS}

    def begin(cls, clients, answers, arguments):
        if arguments["fixed"] is not None:
            answers["choice"][:] = np.maximum(arguments["fixed"], 0)
            _hide_others(answers["losses"], arguments["fixed"])

    def kernel(cls, clients, block, slots, theta, fixed):
        losses, choice, gradients = clients.model.best_response(block, theta, fixed)
        if fixed is not None:
            _hide_others(losses, fixed)
        return losses, choice, gradients

    def count(cls, sizes, arguments):
        """Clients that are held to a model are sent that one only."""
        n, K, p, shared = sizes["n"], sizes["K"], sizes["p"], sizes["shared"]
        fixed = arguments["fixed"]
        held = 0 if fixed is None else int((fixed >= 0).sum())
        down = (n - held) * (K * (p - shared) + shared) + held * p
        return down, (n - held) * (K + 1) + held + n * p


def _hide_others(losses, fixed):
    """Infinity for the models that were not sent to clients with a fixed choice, in place."""
    held = np.flatnonzero(fixed >= 0)
    own = losses[held, fixed[held]]
    losses[held] = np.inf
    losses[held, fixed[held]] = own


class Objectives(Call):
    """Values ``f_i(w_i)`` with the local penalty.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        One model per client.

    Returns
    -------
    values : ndarray of shape (n_clients,)
    """

    down = {"w": "n p", "own": "n"}
    up = {"values": "n"}
    free = frozenset({"own"})
    known = start = "w"
    searched = True
    precise = False

    def kernel(cls, clients, block, slots, w):
        return (clients.model.value(block, w),)


class OwnLosses(Objectives):
    """Mean loss of each client under its own model, without the local penalty.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        One model per client.

    Returns
    -------
    losses : ndarray of shape (n_clients,)
        Losses in double precision, infinity in place of NaN; zero for clients without rows, and
        NaN for those without an answer after the retries: a zero would be the best of losses.
    """

    def result(cls, pool, answers, arguments, start):
        w = arguments["w"] if start is None else start
        losses = np.asarray(answers["values"], dtype=float) - pool.model.penalties(w)
        losses = np.where(np.isnan(losses), np.inf, losses)
        if pool.answered is not None:
            losses[~pool.answered] = np.nan
        return np.where(pool.client_weights > 0, losses, 0.0)


class LeastLosses(Call):
    """Least mean loss that predictions of each client's rows can have, whatever the model.

    Returns
    -------
    values : ndarray of shape (n_clients,)
        Zero of most losses, and not of counts: the half deviance is the loss above it.
    """

    up = {"values": "n"}
    proof = True

    def kernel(cls, clients, block, slots):
        return (clients.model.least_losses(block, np.ones(len(block.clients))),)


class ObjectivesGradients(Objectives):
    """Values and gradients of ``f_i`` at ``w_i`` in one pass.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        One model per client.
    dtype : dtype, default=None
        Type to compute in; second-order methods ask for float64.

    Returns
    -------
    values : ndarray of shape (n_clients,)
    gradients : ndarray of shape (n_clients, n_params)
    """

    down = {"w": "n p", "dtype": "", "own": "n"}
    defaults = {"dtype": None}
    up = {"values": "n", "gradients": "n p"}
    free = frozenset({"own", "dtype"})

    def asked(cls, pool, w, dtype=None):
        dtype = pool.dtype if dtype is None else np.dtype(dtype)
        w = np.broadcast_to(np.asarray(w, dtype=dtype), (pool.n_clients, pool.n_params))
        return {"w": w, "dtype": dtype}

    def kernel(cls, clients, block, slots, w, dtype):
        return clients.model.value_gradient(block.astype(dtype), w)


class Trains(Call, abstract=True):
    """Base of the calls that train models ``w``: silent clients keep theirs."""

    down = {"w": "n p"}
    up = {"w": "n p"}
    free = TRAINING
    known = "w"
    whole = False
    precise = False

    def begin(cls, clients, answers, arguments):
        answers["w"][:] = arguments["w"]

    def passes(cls, sizes, arguments):
        return int(arguments["steps"].max(initial=0))

    def fill(cls, pool, answers, lost, arguments, start, whole):
        answers["w"][lost] = (arguments["w"] if start is None else start)[lost]


class LocalUpdate(Trains):
    """Let every client train its model for some steps on its own rows.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        Starts.
    steps : int or ndarray of shape (n_clients,)
        Optimiser updates; clients may differ.
    step_size : float or ndarray of shape (n_clients,)
        Step of each client.
    optimizer : {"sgd", "momentum", "adam"}, default="sgd"
        The optimiser, its state fresh in every call.
    batch_size : int or None, default=None
        Rows of a batch; None takes all rows, which makes "sgd" gradient descent.
    center : ndarray of shape (n_clients, n_params), default=None
        Centre of a proximal pull.
    rho : float or ndarray of shape (n_clients,), default=0.0
        Its strength: ``rho / 2 ||w - center||^2`` is added to the objective.
    monotone : bool, default=False
        Undo a step that raised a client's objective and halve the client's step from
        then on: the safeguard of automatic steps.  Only of "sgd" on all rows: other steps
        raise the objective by nature.
    keep : bool, default=False
        True if clients keep the trained models, to go on from.

    Returns
    -------
    w : ndarray of shape (n_clients, n_params)
        Trained models. A client without rows has nothing to train on: it answers with the
        centre where it is pulled, else with its start.
    """

    down = {
        **{"w": "n p", "steps": "n", "step_size": "n", "optimizer": "", "batch_size": ""},
        **{"center": "n p", "rho": "n", "monotone": "", "keep": "", "own": "n", "draw": ""},
    }
    defaults = PLAIN | {"center": None, "rho": 0.0, "monotone": False, "keep": False}
    free = TRAINING | {"own", "monotone", "keep"}
    start = keep = "w"

    def asked(cls, pool, *args, **arguments):
        sent = super().asked(pool, *args, **arguments)
        cls.check_monotone(sent)
        return sent

    def check_monotone(cls, sent):
        """Raise a ValueError if a safeguard is asked for that other steps do not have."""
        optimizer, batch_size = sent["optimizer"], sent["batch_size"]
        if sent["monotone"] and (optimizer != "sgd" or batch_size is not None):
            raise ValueError(
                "monotone=True is a safeguard of optimizer='sgd' on all rows, got "
                f"optimizer={optimizer!r} and batch_size={batch_size!r}."
            )

    def begin(cls, clients, answers, arguments):
        super().begin(clients, answers, arguments)
        if arguments["center"] is not None:
            idle = clients.without_rows & (arguments["rho"] > 0)
            answers["w"][idle] = arguments["center"][idle]

    def kernel(cls, clients, block, slots, w, steps, step_size, center, rho, draw, **how):
        if how["monotone"]:
            return (descend(clients.model, block, w, steps, step_size, center, rho),)
        seeds = seeds_of(clients, draw, slots=slots)
        job = steps, step_size, center, rho, how["optimizer"], how["batch_size"], seeds
        return (train(clients.model, block, w, *job),)

    def fill(cls, pool, answers, lost, arguments, start, whole):
        super().fill(pool, answers, lost, arguments, start, whole)
        if arguments["center"] is not None:
            # A client that never answered counts as a client without rows.
            new = lost[~pool.heard(lost)]
            answers["w"][new] = arguments["center"][new]


class MoreauUpdate(Trains):
    """Let every client descend the Moreau envelope of its objective.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        Starts, and first centres of the pull.
    steps : int
        Steps of training towards a proximal point, from the one before.
    step_size : float or ndarray of shape (n_clients,)
        Their length.
    rho : float
        Strength of the pull: ``rho / 2 ||x - center||^2``.
    move : float
        Rate of the moves ``center <- center - move * rho * (center - x)``.
    n_moves : int, default=1
        Number of moves.
    optimizer, batch_size
        As for :class:`LocalUpdate`.

    Returns
    -------
    w : ndarray of shape (n_clients, n_params)
        The last centres.
    """

    down = {
        **{"w": "n p", "steps": "n", "step_size": "n", "rho": "n", "move": "n", "n_moves": ""},
        **{"optimizer": "", "batch_size": "", "draw": ""},
    }
    defaults = PLAIN | {"n_moves": 1}
    free = TRAINING | {"move", "n_moves"}
    most = {"n_moves": 1000}

    def kernel(cls, clients, block, slots, w, steps, step_size, rho, move, n_moves, draw, **how):
        center = w.copy()
        for k in range(n_moves):
            how["seeds"] = seeds_of(clients, draw, k, slots)
            train(clients.model, block, w, steps, step_size, center, rho, **how)
            center -= (move * rho)[:, None] * (center - w)
        return (center,)

    def passes(cls, sizes, arguments):
        return super().passes(sizes, arguments) * arguments["n_moves"]


class MetaUpdate(Trains):
    """Let every client train the model that is best after one more step.

    Parameters
    ----------
    w : ndarray of shape (n_clients, n_params)
        Starts.
    steps, step_size, optimizer, batch_size
        As for :class:`LocalUpdate`; a step draws two batches.
    inner : float or ndarray of shape (n_clients,)
        Length of the inner step: ``f(w - inner * gradient of f at w)`` is what falls.
    exact : bool, default=False
        True if the gradient passes through the inner step, which takes second derivatives.

    Returns
    -------
    w : ndarray of shape (n_clients, n_params)
    """

    down = {
        **{"w": "n p", "steps": "n", "step_size": "n", "inner": "n", "optimizer": ""},
        **{"batch_size": "", "exact": "", "draw": ""},
    }
    defaults = PLAIN | {"exact": False}
    free = TRAINING | {"inner", "exact"}
    minimised = "exact"

    def kernel(cls, clients, block, slots, w, draw, **how):
        how["seeds"] = seeds_of(clients, draw, slots=slots)
        return (meta_train(clients.model, block, w, **how),)

    def passes(cls, sizes, arguments):
        return 2 * super().passes(sizes, arguments)


def train_all(clients, w, steps, step_size, optimizer, batch_size, seeds, terms=None):
    """Models (n, p) trained for some steps; those of clients without rows as they are."""
    out, rho = np.array(w), np.zeros(clients.n_clients, dtype=w.dtype)

    def work(block, slots):
        out[slots] = train(
            clients.model,
            block,
            w[slots],  # a copy, as slots are numbers
            steps[slots],
            step_size[slots],
            None,
            rho[slots],
            optimizer,
            batch_size,
            None if seeds is None else seeds[slots],
            terms,
        )

    clients.each(work, int(steps.max(initial=0)))
    return out
