"""Local optimisers, for the models of all clients of a block at once."""

from math import sqrt

import numpy as np

from .draws import splitmix

# Numbers of an array that an update works on at a time: they stay in cache from the first
# operation to the last.
SLICE = 2**16


def cache_slices(n_clients, start, stop):
    """Slices of the columns start:stop of (c, p) arrays, of at most `SLICE` numbers each."""
    width = max(SLICE // max(n_clients, 1), 1)
    return [np.s_[:, a : min(a + width, stop)] for a in range(start, stop, width)]


class SGD:
    """Gradient steps, with momentum if asked: full batches make it gradient descent."""

    def __init__(self, shape, dtype, momentum=0.0):
        self.slices = cache_slices(shape[0], 0, shape[1])
        self.momentum = momentum
        self.velocity = np.zeros(shape, dtype) if momentum else None

    def step(self, w, g, step_size):
        """Update `w` in place from the gradients `g` (overwritten)."""
        for s in self.slices:
            own, change = w[s], g[s]
            if self.velocity is not None:
                velocity = self.velocity[s]
                velocity *= self.momentum
                velocity += change
                np.multiply(velocity, step_size, out=change)
            else:
                change *= step_size
            own -= change


class Adam:
    """Adam (Kingma and Ba, 2015) with its usual constants.

    Moments are stored without their factors ``1 - beta``, which the step size and epsilon
    take over: fewer operations on long vectors.
    """

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, shape, dtype):
        self.slices = cache_slices(shape[0], 0, shape[1])
        self.mean = np.zeros(shape, dtype)
        self.square = np.zeros(shape, dtype)
        self.t = 0

    def step(self, w, g, step_size):
        """Update `w` in place from the gradients `g` (overwritten)."""
        self.t += 1
        # sqrt of (1 - beta2) / (1 - beta2^t): what makes the root of the second moment unbiased.
        root = sqrt((1 - self.BETA2) / (1 - self.BETA2**self.t))
        step_size = step_size * ((1 - self.BETA1) / (1 - self.BETA1**self.t) / root)
        for s in self.slices:
            own, change, mean, square = w[s], g[s], self.mean[s], self.square[s]
            mean *= self.BETA1
            mean += change
            change *= change
            square *= self.BETA2
            square += change
            np.sqrt(square, out=change)
            change += self.EPSILON / root
            np.divide(mean, change, out=change)
            change *= step_size
            own -= change


#: Optimisers with fresh state, by their public name, made of a shape and a dtype.
OPTIMIZERS = {
    "sgd": SGD,
    "momentum": lambda shape, dtype: SGD(shape, dtype, momentum=0.9),
    "adam": Adam,
}


class Batches:
    """Batches of each client's rows, drawn without replacement epoch by epoch.

    The order depends on a client's seed only, not on the block it is stored in.
    """

    def __init__(self, block, batch_size, seeds):
        self.block, self.size, self.seeds = block, batch_size, seeds
        #: Rows of a batch, padding included.
        self.n_rows = min(batch_size, block.weights.shape[1])
        self.room = None
        self.per_epoch = np.maximum(-(-block.lengths // batch_size), 1)
        self.order = np.empty(block.weights.shape, dtype=np.intp)
        self.t = 0

    def next(self):
        """Block of the next batch of every client; batch weights sum to 1.

        It is valid until the next call, which reuses its memory.
        """
        block = self.block
        place = self.t % self.per_epoch
        fresh = np.flatnonzero(place == 0)
        if len(fresh):
            epoch = (self.t // self.per_epoch[fresh]).astype(np.uint64)
            n = block.weights.shape[1]
            with np.errstate(over="ignore"):
                key = splitmix(self.seeds[fresh] + splitmix(epoch))[:, None] + np.arange(
                    n, dtype=np.uint64
                )
            key = splitmix(key)
            padding = np.arange(n) >= block.lengths[fresh, None]
            key[padding] = np.iinfo(np.uint64).max
            self.order[fresh] = np.argsort(key, axis=1, kind="stable")
        self.t += 1
        at = place[:, None] * self.size + np.arange(self.n_rows)
        real = at < block.lengths[:, None]
        rows = np.take_along_axis(self.order, np.where(real, at, 0), axis=1)
        weights = np.take_along_axis(block.weights, rows, axis=1) * real
        total = weights.sum(axis=1, keepdims=True)
        np.divide(weights, total, out=weights, where=total > 0)
        batch = block.batch(rows, weights, self.room)
        # The next batch takes the place of this one.
        self.room = batch.X
        return batch
