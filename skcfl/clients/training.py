"""Local training: steps of an optimiser on the models of a block's clients."""

from dataclasses import dataclass

import numpy as np

from ..numerics.matrices import columns_of
from .optimizers import OPTIMIZERS, Batches


@dataclass
class TrainingTerms:
    """Extra terms of local training: frozen parameters and prototypes.

    Attributes
    ----------
    trained : ndarray of shape (n_params,) of bool or None
        Parameters that are trained, the others frozen; None are all.
    prototypes : ndarray of shape (n_classes, n_representation) or None
        Points that the representations of the rows of each class are drawn to, NaN of classes
        that have none.
    strength : float
        Factor of the mean squared distance to them, which is added to the loss.
    """

    trained: np.ndarray | None = None
    prototypes: np.ndarray | None = None
    strength: float = 0.0

    def __post_init__(self):
        if self.prototypes is not None:
            self.known = ~np.isnan(self.prototypes).any(axis=1)
            self.points = np.where(self.known[:, None], self.prototypes, 0.0)
            self.points = self.points.astype(self.prototypes.dtype)


def train(model, block, w, steps, rates, center, rho, optimizer, batch_size, seeds, terms=None):
    """Steps of an optimiser on the models (c, p) of a block, in place."""
    if _overshoots(model, optimizer, batch_size):
        w[:] = descend(model, block, w, steps, rates, center, rho, terms and terms.trained)
        return w
    size, work = model.clients_at_once(block), None
    moved, trained = _moved(model, terms)
    for some, part in block.parts(size):
        batches = None if batch_size is None else Batches(part, batch_size, seeds[some])
        if work is None or some.stop - some.start < size:
            work = model.workspace(part, None if batches is None else batches.n_rows, terms)
        if model.local_steps_only:
            work.begin(None if seeds is None else seeds[some])
        _train_together(
            model,
            part,
            w[some],
            steps[some],
            rates[some],
            None if center is None else center[some],
            rho[some],
            OPTIMIZERS[optimizer](w[some, moved].shape, w.dtype),
            batches,
            work,
            moved,
            trained,
        )
    return w


def _moved(model, terms):
    """Columns from the first to the last parameter that steps move, and which do; None: all."""
    trained = None if terms is None else terms.trained
    if model.moved is not None:
        trained = model.moved if trained is None else trained & model.moved
    if trained is None or not trained.any():
        return slice(None), trained
    columns = columns_of(trained)
    if isinstance(columns, slice):
        return columns, None
    first, last = np.flatnonzero(trained)[[0, -1]]
    columns = slice(first, last + 1)
    return columns, trained[columns]


def _train_together(
    model, block, w, steps, rates, center, rho, optimizer, batches, work, moved, trained
):
    """Train some clients at the same time, the columns `moved` of their models `w` in place."""
    own = w[:, moved]
    center = None if center is None else center[:, moved]
    most = int(steps.max(initial=0))
    even = (steps == most).all()
    rates, rho = rates[:, None], rho[:, None]
    for t in range(most):
        batch = block if batches is None else batches.next()
        g = model.gradient(batch, w, work)[:, moved]
        if center is not None:
            g += rho * (own - center)
        if trained is not None:
            g *= trained
        optimizer.step(own, g, rates if even else np.where((t < steps)[:, None], rates, 0))


def meta_train(model, block, w, steps, step_size, inner, optimizer, batch_size, seeds, exact):
    """Steps on ``f(w - inner * gradient of f(w))`` for the models (c, p) of a block.

    The two gradients of a step are of two batches; the outer one passes through the inner step
    where `exact`, and ignores its derivative elsewhere (first order).
    """
    if _overshoots(model, optimizer, batch_size):
        w[:] = _meta_descend(model, block, w, steps, step_size, inner, exact)
        return w
    for some, part in block.parts(model.clients_at_once(block)):
        batches = None if batch_size is None else Batches(part, batch_size, seeds[some])
        job = steps[some], step_size[some, None], inner[some, None]
        _meta_train_together(
            model,
            part,
            w[some],
            *job,
            OPTIMIZERS[optimizer](w[some].shape, w.dtype),
            batches,
            exact,
            seeds if seeds is None else seeds[some],
        )
    return w


def _meta_train_together(model, block, w, steps, rates, inner, optimizer, batches, exact, seeds):
    """Train some clients at the same time, their models `w` in place."""
    work = model.workspace(block, None if batches is None else batches.n_rows)
    if model.local_steps_only:
        work.begin(seeds)
    for t in range(int(steps.max(initial=0))):
        batch = _next_batch(block, batches, exact)
        ahead = w - inner * model.gradient(batch, w, work)
        g = model.gradient(_next_batch(block, batches, False), ahead, work)
        if exact:
            g = g - inner * model.hessian_product(batch, w, g)
        optimizer.step(w, g, np.where((t < steps)[:, None], rates, 0))


def _meta_descend(model, block, w, steps, rates, inner, exact):
    """The same by steps that raise no function; an inner step that raises a loss is not taken."""

    def at(w):
        value, g = model.value_gradient(block, w)
        ahead, g_ahead = model.value_gradient(block, w - inner[:, None] * g)
        falls = ahead <= value
        length = np.where(falls, inner, 0.0)[:, None]
        g = np.where(falls[:, None], g_ahead, g)
        if exact:
            g = g - length * model.hessian_product(block, w, g)
        return np.where(falls, ahead, value), g

    return _lowered(at, w, steps, rates)


def _overshoots(model, optimizer, batch_size):
    """True if no length of a step is safe: of linear models of counts and amounts, on all rows."""
    return model.halves_steps and optimizer == "sgd" and batch_size is None


def _next_batch(block, batches, stays):
    """All rows, or a batch, which the next one overwrites unless it `stays`."""
    if batches is None:
        return block
    batch = batches.next()
    if stays:
        batches.room = None
    return batch


def descend(model, block, w, steps, rates, center, rho, trained=None):
    """Gradient descent that never raises an objective: a bad step is undone and halved."""

    def at(w):
        value, g = model.value_gradient(block, w)
        if center is not None:
            away = w - center
            value += 0.5 * rho * (away**2).sum(axis=1)
            g += rho[:, None] * away
        return value, g if trained is None else g * trained

    return _lowered(at, w, steps, rates)


def _lowered(at, w, steps, rates):
    """Models after steps down functions, which have values and slopes ``at(w)``."""
    rates = rates.copy()
    best, value, slope = w, None, None
    rounding = 8 * np.finfo(w.dtype).eps
    last = int(steps.max(initial=0))
    for t in range(last + 1):
        new, g = at(w)
        if value is None:
            value, slope = new, g
        else:
            good = new <= value + rounding * np.abs(value)
            if good.all():
                best, value, slope = w, new, g
            else:
                rates = np.where(good, rates, rates * 0.5)
                best = np.where(good[:, None], w, best)
                value = np.where(good, new, value)
                slope = np.where(good[:, None], g, slope)
        if t < last:
            w = best - np.where(t < steps, rates, 0)[:, None] * slope
    return best
