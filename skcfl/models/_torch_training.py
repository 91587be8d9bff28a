"""Gradients of modules in the steps of local training: one client after the other, or stacked.

The slope of the loss in the module's outputs is that of the package's losses; PyTorch carries it
on to the parameters.  On a GPU the clients of a chunk are one call: ``vmap`` over their parameters
and rows.  On a processor that brings nothing, and takes the memory of all of their activations.
"""

import numpy as np

from ..clients.draws import mixed
from ._torch_runner import differentiable, need_torch

# Copies of a client's states and parameters that a stacked step has room for.
STATES, COPIES = 3, 4


class Training:
    """Steps of local training on the clients of a block, which share one copy of the module.

    Parameters
    ----------
    model : TorchModel
        Bound model.
    runner : Runner
        The runner of the module.
    terms : TrainingTerms or None
        Extra terms: frozen parameters and prototypes.
    training : bool, default=True
        True if dropout draws, and buffers follow the rows.
    """

    def __init__(self, model, runner, terms=None, training=True):
        self.model, self.runner, self.training = model, runner, training
        #: Prototypes that draw representations, or None.
        self.terms = None if terms is None or terms.prototypes is None else terms
        #: Parameters that need a gradient, None for all.
        self.trained = None if terms is None else terms.trained
        self.decay = model.decay.astype(runner.dtype) if model.alpha_ else None
        self.seeds, self.step, self.out = None, 0, None
        if self.trained is not None and model.buffers == "average":
            runner.freeze(~self.trained)
        if self.terms is not None:
            model.need_representation()

    def begin(self, seeds):
        """Begin the training of clients, which draw by these seeds if the module draws."""
        self.seeds, self.step = seeds if self.model.stochastic else None, 0
        self.runner.begin()

    def gradient(self, block, w, value=None):
        """Gradients (c, p) at the models (c, p), and losses added to `value` (c,)."""
        if self.out is None or self.out.shape != w.shape:
            self.out = np.zeros(w.shape, w.dtype)
        seeds = None
        if self.training and self.seeds is not None:
            seeds = mixed(self.seeds, self.step)
        self.step += 1
        for i, out in enumerate(self.out):
            n = _real_rows(block.weights[i], block.lengths[i])
            if n == 0:
                out[:] = 0.0
            else:
                self._client(block, i, n, w[i], None if seeds is None else seeds[i], value)
            if self.decay is not None:
                out += self.decay * w[i]
        return self.out

    def _client(self, block, i, n, w, seed, value):
        model, runner = self.model, self.runner
        X, weights = block.X[i, :n], block.weights[i, :n]
        runner.load(w, self._own(block, i, w))
        outputs, representation = runner.forward(X, self.training, seed)
        z = outputs.detach().cpu().numpy().T
        target = model.targets(X, block.y[i][:, :n])
        if value is not None:
            value[i] += model.kernel.value(z, target) @ weights
        slope = model.kernel.gradient(z, target) * weights
        among, slopes = [outputs], [np.ascontiguousarray(slope.T)]
        if self.terms is not None and representation.requires_grad:
            among.append(representation)
            slopes.append(self._pull(block, i, n, representation.detach().cpu().numpy()))
        runner.gradient(among, slopes, self.out[i], self.trained)

    def _own(self, block, i, w):
        """State that client i keeps, at first the one that it was sent."""
        if self.training and block.own is not None and not block.own[1][i]:
            block.own[0][i], block.own[1][i] = w[self.model.own], True
        return own_of(block, i)

    def _pull(self, block, i, n, A):
        """Slope of the distance of representations to their classes' prototypes."""
        terms, A = self.terms, A.reshape(n, -1)
        codes = self.model.kernel.codes(block.y[i][:, :n])
        strength = (2.0 * terms.strength / A.shape[1]) * terms.known[codes] * block.weights[i, :n]
        return ((A - terms.points[codes]) * strength[:, None]).astype(A.dtype)


class Stacked:
    """The same steps for several clients in one call.

    For modules without draws and buffers; nothing is drawn to prototypes.

    Parameters
    ----------
    model : TorchModel
        Bound model.
    runner : Runner
        Runner with the module on the device.
    """

    def __init__(self, model, runner):
        self.model, self.runner = model, runner
        self.decay = model.decay.astype(runner.dtype)

    @differentiable()
    def gradient(self, block, w):
        """Gradients (c, p) at the models (c, p)."""
        model, runner = self.model, self.runner
        torch, (c, n, d) = runner.torch, block.shape
        stacked = torch.from_numpy(w).to(runner.device)
        parts = {
            entry.path: stacked[:, entry.start : entry.stop].reshape(c, *entry.shape)
            for entry in model.entries
        }
        trained = {entry.path: parts.pop(entry.path) for entry in model.entries if entry.trained}
        X = block.X.reshape(c * n, d)
        x = runner.inputs(X)
        x = x.view(c, n, *x.shape[1:])

        def outputs(some):
            return torch.vmap(runner.functional)({**parts, **some}, x)

        z, pull = torch.func.vjp(outputs, trained)
        z = z.detach().cpu().numpy().reshape(c * n, -1)
        target = model.targets(X, block.y.transpose(1, 0, 2).reshape(-1, c * n))
        weights = block.weights.reshape(c * n)
        slope = np.where(weights > 0, model.kernel.gradient(z.T, target) * weights, 0.0)
        slope = np.ascontiguousarray(slope.T.astype(z.dtype)).reshape(c, n, -1)
        (slopes,) = pull(torch.from_numpy(slope).to(runner.device))
        out = self.decay * w
        for entry in model.entries:
            if entry.trained:
                values = slopes[entry.path].reshape(c, -1).cpu().numpy()
                out[:, entry.start : entry.stop] += values
        return out


def clients_that_fit(n_rows, n_states, n_params, itemsize, device):
    """How many clients a stacked step has room for on a device."""
    torch = need_torch()
    free = torch.cuda.mem_get_info(device)[0] if device.startswith("cuda") else 2**30
    each = itemsize * (STATES * n_rows * n_states + COPIES * n_params)
    return max(int(free // (2 * max(each, 1))), 1)


def own_of(block, i):
    """State that client i of a block keeps, None if there is none."""
    return None if block.own is None or not block.own[1][i] else block.own[0][i]


def _real_rows(weights, length):
    """Number of rows before those that fill up a block or a batch, which weigh nothing."""
    n = min(int(length), len(weights))
    if n and weights[n - 1] == 0:
        n = int(np.flatnonzero(weights[:n])[-1]) + 1 if weights[:n].any() else 0
    return n
