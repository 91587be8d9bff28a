"""Local training: steps of an optimiser on the models of a block's clients."""

import numpy as np

from .optimizers import Batches, make_optimizer


def train(model, block, w, steps, rates, center, rho, optimizer, batch_size, seeds):
    """Steps of an optimiser on the models (c, p) of a block, in place."""
    size, work = model.clients_at_once(block), None
    for first in range(0, len(w), size):
        some = slice(first, min(first + size, len(w)))
        part = block if size >= len(w) else block.take(some)
        batches = None if seeds is None else Batches(part, batch_size, seeds[some])
        if work is None or some.stop - first < size:
            work = model.workspace(part, None if batches is None else batches.n_rows)
        _train_together(
            model,
            part,
            w[some],
            steps[some],
            rates[some],
            None if center is None else center[some],
            rho[some],
            make_optimizer(optimizer, w[some].shape, w.dtype),
            batches,
            work,
        )
    return w


def _train_together(model, block, w, steps, rates, center, rho, optimizer, batches, work):
    """Train some clients at the same time, their models `w` in place."""
    most = int(steps.max(initial=0))
    even = (steps == most).all()
    rates, rho = rates[:, None], rho[:, None]
    for t in range(most):
        batch = block if batches is None else batches.next()
        g = model.gradient(batch, w, work)
        if center is not None:
            g += rho * (w - center)
        optimizer.step(w, g, rates if even else np.where((t < steps)[:, None], rates, 0))


def descend(model, block, w, steps, rates, center, rho):
    """Gradient descent that never raises an objective: a bad step is undone and halved."""
    rates = rates.copy()
    best, value, slope = w, None, None
    for t in range(int(steps.max(initial=0)) + 1):
        with np.errstate(over="ignore", invalid="ignore"):
            new, g = model.value_gradient(block, w)
        if center is not None:
            new = new + 0.5 * rho * ((w - center) ** 2).sum(axis=1)
            g = g + rho[:, None] * (w - center)
        if value is None:
            value, slope = new, g
        else:
            rounding = 8 * np.finfo(w.dtype).eps * np.abs(value)
            good = new <= value + rounding
            rates = np.where(good, rates, rates * 0.5)
            best = np.where(good[:, None], w, best)
            value = np.where(good, new, value)
            slope = np.where(good[:, None], g, slope)
        rate = np.where(t < steps, rates, 0)[:, None]
        w = best - rate * slope
    return best
