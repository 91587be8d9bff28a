"""Local optimisers, for the models of all clients of a block at once."""

import numpy as np


class SGD:
    """Gradient steps, with momentum if asked: full batches make it gradient descent."""

    def __init__(self, shape, dtype, momentum=0.0):
        self.momentum = momentum
        self.velocity = np.zeros(shape, dtype) if momentum else None

    def step(self, w, g, step_size):
        """Update `w` in place from the gradients `g` (overwritten)."""
        if self.velocity is not None:
            self.velocity *= self.momentum
            self.velocity += g
            np.multiply(self.velocity, step_size, out=g)
        else:
            g *= step_size
        w -= g


class Adam:
    """Adam (Kingma and Ba, 2015) with its usual constants."""

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, shape, dtype):
        self.mean = np.zeros(shape, dtype)
        self.square = np.zeros(shape, dtype)
        self.t = 0

    def step(self, w, g, step_size):
        """Update `w` in place from the gradients `g` (overwritten)."""
        self.t += 1
        self.mean *= self.BETA1
        self.mean += (1 - self.BETA1) * g
        g *= g
        g *= 1 - self.BETA2
        self.square *= self.BETA2
        self.square += g
        np.sqrt(self.square, out=g)
        g *= 1.0 / np.sqrt(1 - self.BETA2**self.t)
        g += self.EPSILON
        np.divide(self.mean, g, out=g)
        g *= step_size / (1 - self.BETA1**self.t)
        w -= g


OPTIMIZERS = {
    "sgd": SGD,
    "momentum": lambda shape, dtype: SGD(shape, dtype, momentum=0.9),
    "adam": Adam,
}


def make_optimizer(name, shape, dtype):
    """Optimiser of a public name with fresh state."""
    return OPTIMIZERS[name](shape, dtype)


_MIX = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)


def _mix(x):
    """Splitmix64: a good hash of 64-bit integers, so that draws need no stored state."""
    with np.errstate(over="ignore"):
        x = x + _MIX[0]
        x = (x ^ (x >> np.uint64(30))) * _MIX[1]
        x = (x ^ (x >> np.uint64(27))) * _MIX[2]
        return x ^ (x >> np.uint64(31))


class Batches:
    """Batches of each client's rows, drawn without replacement epoch by epoch.

    The order depends on a client's seed only, not on the block it is stored in.
    """

    def __init__(self, block, batch_size, seeds):
        self.block, self.size, self.seeds = block, batch_size, seeds
        self.per_epoch = np.maximum(-(-block.lengths // batch_size), 1)
        self.order = np.empty(block.weights.shape, dtype=np.intp)
        self.t = 0

    def next(self):
        """Block of the next batch of every client; batch weights sum to 1."""
        block = self.block
        place = self.t % self.per_epoch
        fresh = np.flatnonzero(place == 0)
        if len(fresh):
            epoch = (self.t // self.per_epoch[fresh]).astype(np.uint64)
            n = block.weights.shape[1]
            with np.errstate(over="ignore"):
                key = _mix(self.seeds[fresh] + _mix(epoch))[:, None] + np.arange(
                    n, dtype=np.uint64
                )
            key = _mix(key)
            padding = np.arange(n) >= block.lengths[fresh, None]
            key[padding] = np.iinfo(np.uint64).max
            self.order[fresh] = np.argsort(key, axis=1, kind="stable")
        self.t += 1
        at = place[:, None] * self.size + np.arange(min(self.size, self.order.shape[1]))
        real = at < block.lengths[:, None]
        rows = np.take_along_axis(self.order, np.where(real, at, 0), axis=1)
        weights = np.take_along_axis(block.weights, rows, axis=1) * real
        total = weights.sum(axis=1, keepdims=True)
        np.divide(weights, total, out=weights, where=total > 0)
        return block.batch(rows, weights)
