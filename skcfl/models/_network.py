"""Feed-forward networks: what MLP and Autoencoder share.

Layer l of a client's network maps the states ``A_{l-1}`` of its rows to

    Z_l = A_{l-1} W_l + b_l,    A_l = activation(Z_l),    A_0 = X

and the last layer's ``Z`` is the prediction that the loss sees.  Back from there,

    D_L = d loss / d Z_L  (rows weighted),   D_{l-1} = (D_l W_l') * activation'(A_{l-1}),
    d/d W_l = A_{l-1}' D_l + alpha W_l,      d/d b_l = sum of D_l over the rows.

States of ``c`` clients are ``(c, n, units)``, so that a layer is one batched matrix product for
all of them, written into buffers that the steps of local training share.  The losses want
rows last and see the transposed predictions.
"""

import copy
from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Integral

import numpy as np
from scipy import sparse
from sklearn.neural_network._base import ACTIVATIONS
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._checks import NOT_NEGATIVE, Interval
from ..clients.blocks import Block, one_client
from ..clients.optimizers import cache_slices
from ..federation.scaling import Scaling
from ..numerics.by_cluster import rows_by_label
from ._local_model import LocalModel
from ._plain import plain_network

# Parameters of a network: beyond, a few copies of it do not fit into memory.
MAX_PARAMS = 10**8
# Clients are trained together as long as their rows, states and parameters stay in cache.
CACHE_BYTES = 2**20


def _identity_slope(A, D):
    """Derivative 1."""


def _relu_slope(A, D):
    """Derivative 0 or 1."""
    D *= A > 0


def _tanh_slope(A, D):
    """Derivative ``1 - A^2``."""
    A *= A
    np.subtract(1.0, A, out=A)
    D *= A


def _logistic_slope(A, D):
    """Derivative ``A (1 - A)``."""
    D *= A
    np.subtract(1.0, A, out=A)
    D *= A


# What multiplies `D` by the derivative of an activation in terms of the states `A`, which are not
# needed any more and may be overwritten.
SLOPES = {
    "relu": _relu_slope,
    "tanh": _tanh_slope,
    "logistic": _logistic_slope,
    "identity": _identity_slope,
}

NETWORK_CONSTRAINTS = {
    "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [StrOptions(set(SLOPES))],
    "alpha": [NOT_NEGATIVE],
    "precision": [StrOptions({"single", "double"})],
    "standardize": ["boolean"],
}


@dataclass(frozen=True)
class Layer:
    """Place of a layer in the parameter vector: weights (inputs, outputs), then biases."""

    name: str
    start: int
    n_inputs: int
    n_outputs: int

    @property
    def cut(self):
        """Position at which the weights end and the biases begin."""
        return self.start + self.n_outputs * self.n_inputs

    @property
    def stop(self):
        """End of the layer's parameters."""
        return self.cut + self.n_outputs

    def parts(self, w):
        """Views of weights (c, inputs, outputs) and biases (c, outputs) of models (c, p)."""
        weights = w[:, self.start : self.cut].reshape(len(w), self.n_inputs, self.n_outputs)
        return weights, w[:, self.cut : self.stop]


def make_states(layers, n_clients, n_rows, dtype):
    """Arrays for what each layer hands on, (c, n, units); the last are the predictions."""
    return [np.empty((n_clients, n_rows, layer.n_outputs), dtype) for layer in layers]


class Buffers:
    """Arrays that the steps of local training share: every step overwrites them."""

    def __init__(self, layers, n_clients, n_rows, dtype, terms=None):
        trained = None if terms is None else terms.trained
        #: First layer that is trained, and the points that the last hidden states are drawn to.
        self.first, self.terms = 0, terms
        #: Rows with states below the first trained layer.
        self.block = None
        if trained is not None:
            self.first = next(i for i, y in enumerate(layers) if trained[y.start : y.stop].any())
        self.states = make_states(layers, n_clients, n_rows, dtype)
        #: Derivatives of the loss in the hidden layers' states.
        self.slopes = make_states(layers[:-1], n_clients, n_rows, dtype)
        self.gradient = np.zeros((n_clients, layers[-1].stop), dtype)
        #: Slices of the weights of all layers, and room for the penalty's slope of one.
        self.penalised = [
            s for y in layers[self.first :] for s in cache_slices(n_clients, y.start, y.cut)
        ]
        widest = max(columns.stop - columns.start for _, columns in self.penalised)
        self.pull = np.empty((n_clients, widest), dtype)
        #: To sum over the rows by a product, which is faster.
        self.ones = np.ones(n_rows, dtype)


class Network(LocalModel):
    """Base of feed-forward networks: everything but what the last layer is compared with."""

    # ------------------------------------------------------------------ of the subclass

    @abstractmethod
    def _target(self, block):
        """Targets of a block's rows, in the shape of the predictions, (c, q, n)."""

    @abstractmethod
    def _bind_loss(self):
        """Set ``kernel``, the loss of the predictions, and ``n_outputs``."""

    # ------------------------------------------------------------- data and parameters

    fit_intercept = True
    # Raw predictions in the user's units are the first, and the second times the network's.
    _of_predictions = None

    @property
    def trained_loss(self):
        """The loss that training sees, of targets as :meth:`encode` makes them."""
        return self.kernel

    @property
    def judged_loss(self):
        """The loss by which models are compared, of such targets."""
        return self.kernel

    @property
    def rows_dtype(self):
        """Double precision of rows that the network scales, which may be far from zero."""
        return self.dtype if self.scaling_ is None else np.dtype(float)

    def with_scaling(self, scaling):
        """Bound network that reads the user's features and scales them; see ``ModelSpec``.

        Its parameters would lose digits if they were for features far from unit size.
        """
        model = copy.copy(self)
        model.scaling_ = scaling
        return model, None

    def to_message(self):
        """Parts with the scaling of the features."""
        scaling = self.scaling_
        units = {} if scaling is None else {"scaling": (scaling.mean, scaling.scale)}
        return super().to_message() | units

    @classmethod
    def from_message(cls, parts):
        """Network of what :meth:`to_message` returned."""
        model = super().from_message(parts)
        if "scaling" in parts:
            mean, scale = parts["scaling"]
            model, _ = model.with_scaling(Scaling(mean, scale).checked(model.n_features))
        return model

    def _bind(self):
        hidden = check_sizes(self.hidden_layer_sizes)
        self.dtype = np.dtype(np.float32 if self.precision == "single" else np.float64)
        self._bind_loss()
        units = [self.n_features, *hidden, self.n_outputs]
        names = [f"hidden{i + 1}" for i in range(len(hidden))] + ["output"]
        self.layers, start = [], 0
        for name, n_inputs, n_outputs in zip(names, units[:-1], units[1:], strict=True):
            self.layers.append(Layer(name, start, n_inputs, n_outputs))
            start = self.layers[-1].stop
        if start > MAX_PARAMS:
            raise ValueError(
                f"hidden_layer_sizes={hidden}, n_features={self.n_features} and n_classes="
                f"{self.n_classes} make a network of {start} parameters, more than {MAX_PARAMS}."
            )
        self.n_params = start
        self._penalise(0.0 if self.alpha == "auto" else self.alpha)

    def _penalise(self, alpha):
        self.alpha_ = float(alpha)
        #: Penalty of each parameter.
        self.decay = np.zeros(self.n_params)
        for layer in self.layers:
            layer.parts(self.decay[None])[0][...] = alpha

    def design(self, X):
        """Features in the network's units, in the precision of the computations."""
        X = sparse.csr_array(X) if sparse.issparse(X) else X
        X = X if self.scaling_ is None else self.scaling_.transform(X)
        return X.astype(self.dtype, copy=False)

    def init_params(self, n_models, random_state):
        """Uniform starts of Glorot and Bengio (2010), biases included, as in scikit-learn."""
        rng = check_random_state(random_state)
        factor = 2.0 if self.activation == "logistic" else 6.0
        bound = np.empty(self.n_params)
        for layer in self.layers:
            bound[layer.start : layer.stop] = np.sqrt(factor / (layer.n_inputs + layer.n_outputs))
        w = rng.uniform(-1.0, 1.0, size=(n_models, self.n_params))
        return (w * bound).astype(self.dtype)

    def layer_slices(self):
        """Slices of the parameter vector by layer name, the first layer first."""
        return {layer.name: slice(layer.start, layer.stop) for layer in self.layers}

    def weights(self, params):
        """Weights and biases of a model (n_params,) for the user's units, by layer name.

        Returns
        -------
        weights : dict of str to tuple
            ``(W, b)`` of shapes (n_inputs, n_outputs) and (n_outputs,), as in the
            attributes ``coefs_`` and ``intercepts_`` of scikit-learn's networks.
        """
        params = np.asarray(params)
        if params.shape != (self.n_params,):
            raise ValueError(
                f"params must be one parameter vector of shape ({self.n_params},), got an array "
                f"of shape {params.shape}."
            )
        parts = [layer.parts(params[None].astype(float)) for layer in self.layers]
        if self.scaling_ is not None:
            W, b = parts[0]
            W /= self.scaling_.scale[:, None]
            b -= self.scaling_.mean @ W
        if self._of_predictions is not None:
            at, spread = self._of_predictions
            W, b = parts[-1]
            W *= spread
            b *= spread
            b += at
        return {y.name: (W[0], b[0]) for y, (W, b) in zip(self.layers, parts, strict=True)}

    def plain(self, params, classes):
        """Fitted network of scikit-learn with the parameters (n_params,) of one model."""
        weights = list(self.weights(params).values())
        loss = getattr(self, "loss", None)
        return plain_network(weights, self.activation, loss, self._plain_output(), classes)

    def _plain_output(self):
        """Activation of the last layer, by scikit-learn's name."""
        raise NotImplementedError

    # ---------------------------------------------------------------- forward, backward

    def clients_at_once(self, block):
        """Clients of a block with rows, states and parameters that fit in cache together."""
        c, n, d = block.shape
        if sparse.issparse(block.X):
            return max(c, 1)  # rows of a sparse matrix are not taken out for nothing
        units = sum(layer.n_outputs for layer in self.layers)
        each = block.dtype.itemsize * (3 * self.n_params + n * (d + 2 * units))
        return max(CACHE_BYTES // each, 1)

    def workspace(self, block, n_rows=None, terms=None):
        """Buffers for steps on batches of `n_rows` rows of a block's clients (all by default)."""
        c, n, _ = block.shape
        return Buffers(self.layers, c, n if n_rows is None else n_rows, block.dtype, terms)

    def _parts(self, block, w):
        """Clients that fit into the cache together: places, block, models and buffers."""
        size, work = self.clients_at_once(block), None
        for here, part in block.parts(size):
            if work is None or part.shape[0] < size:
                work = self.workspace(part)
            yield here, part, w[here], work

    def _forward(self, block, w, states, first=0, stop=None):
        """Predictions (c, C, n) of each client's own model; fills the states of some layers."""
        act = ACTIVATIONS[self.activation]
        A = states[first - 1] if first else None
        for layer, state in zip(self.layers[first:stop], states[first:stop], strict=True):
            W, b = layer.parts(w)
            if A is None:
                block.times(W, out=state)
            else:
                np.matmul(A, W, out=state)
            state += b[:, None, :]
            if layer is not self.layers[-1]:
                act(state)
            A = state
        return A.transpose(0, 2, 1)

    def _backward(self, block, w, work):
        """Gradient of every client from the states of its rows, into ``work.gradient``."""
        times_slope = SLOPES[self.activation]
        Z = work.states[-1].transpose(0, 2, 1)
        D = self.trained_loss.gradient(Z, self._target(block)).transpose(0, 2, 1)
        D *= block.weights[:, :, None]
        for i in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[i]
            gradient, bias = layer.parts(work.gradient)
            np.matmul(work.ones, D, out=bias)
            if i == 0:
                block.transposed_times(D, out=gradient)
                break
            A, slope = work.states[i - 1], work.slopes[i - 1]
            np.matmul(A.transpose(0, 2, 1), D, out=gradient)
            if i == work.first:
                break
            np.matmul(D, layer.parts(w)[0].transpose(0, 2, 1), out=slope)
            if i == len(self.layers) - 1 and work.terms is not None:
                self._pull_to_prototypes(block, A, slope, work.terms)
            times_slope(A, slope)
            D = slope
        if self.alpha_:
            for some in work.penalised:
                some_w, slope = w[some], work.gradient[some]
                pull = work.pull[:, : some_w.shape[1]]
                np.multiply(some_w, self.alpha_, out=pull)
                slope += pull
        return work.gradient

    def _pull_to_prototypes(self, block, A, slope, terms):
        """Add the slope of the distance of representations `A` to their classes' prototypes."""
        if terms.prototypes is None or terms.strength == 0:
            return
        codes = self.classes_of(block)
        strength = (2.0 * terms.strength / A.shape[2]) * terms.known[codes] * block.weights
        away = np.take(terms.points, codes, axis=0)
        np.subtract(A, away, out=away)
        away *= strength.astype(A.dtype)[:, :, None]
        slope += away

    def representation(self, block, w):
        """Last hidden states of every row: (c, p) -> (c, n, n_representation)."""
        out = np.empty((*block.shape[:2], self.n_representation), block.dtype)
        for here, part, some_w, work in self._parts(block, w):
            self._forward(part, some_w, work.states)
            out[here] = work.states[-2] if len(self.layers) > 1 else part.dense()
        return out

    def upper_layers(self, block, w, trained):
        """Network of the upper layers, and the hidden states that they see."""
        first = next(i for i, y in enumerate(self.layers) if trained[y.start : y.stop].any())
        if not first:
            return self, block, 0, 0.0
        n_inputs, below = self.layers[first].n_inputs, self.layers[first].start
        seen = np.empty((*block.shape[:2], n_inputs), block.dtype)
        for here, part, some_w, work in self._parts(block, w):
            self._forward(part, some_w, work.states, stop=first)
            seen[here] = work.states[first - 1]
        upper = copy.copy(self)
        upper.layers = [replace(y, start=y.start - below) for y in self.layers[first:]]
        upper.n_features, upper.n_params = n_inputs, self.n_params - below
        upper.decay = self.decay[below:]
        rows = Block(seen, block.y, block.weights, block.clients, block.lengths)
        values = 0.5 * (w[:, :below] ** 2 @ self.decay[:below].astype(w.dtype))
        return upper, rows, below, values

    @property
    def n_representation(self):
        """Numbers of a row's representation: the inputs of the last layer."""
        return self.layers[-1].n_inputs

    # ------------------------------------------------------------------ first order

    mixes = True

    def losses_of_rows(self, block, theta):
        """Loss of every row under every model: (K, p) -> (c, K, n).

        A layer is one product of a model with the rows of all clients.
        """
        c, n, _ = block.shape
        values = np.empty((len(theta), c * n), block.dtype)
        for rows, part in block.row_parts(self._rows_at_once()):
            states = make_states(self.layers, 1, part.shape[1], block.dtype)
            target = self._target(part)
            for k in range(len(theta)):
                Z = self._forward(part, theta[k : k + 1], states)
                values[k, rows] = self.judged_loss.value(Z, target)[0]
        return values.reshape(-1, c, n).transpose(1, 0, 2)

    def _rows_at_once(self):
        """Rows with states that fit in cache."""
        widest = max(layer.n_outputs for layer in self.layers)
        return max(CACHE_BYTES // (self.dtype.itemsize * widest), 1)

    def value(self, block, w):
        """``f_i(w_i)``: (c, p) -> (c,)."""
        value = np.empty(len(w), w.dtype)
        for here, part, some_w, work in self._parts(block, w):
            value[here] = self._value(part, some_w, self._forward(part, some_w, work.states))
        return value

    def _value(self, block, w, Z):
        """Mean loss and penalty of every client from the predictions."""
        rows = self.trained_loss.value(Z, self._target(block))
        value = np.einsum("cn,cn->c", rows, block.weights)
        if self.alpha_:
            weights = (w[:, layer.start : layer.cut] for layer in self.layers)
            value += 0.5 * self.alpha_ * sum(np.einsum("cp,cp->c", W, W) for W in weights)
        return value

    def _train_forward(self, block, w, work):
        """Predictions for a step of training; layers below those trained see the rows once."""
        Z = self._forward(block, w, work.states, work.first if work.block is block else 0)
        work.block = block if work.first else None
        return Z

    def value_gradient(self, block, w, work=None):
        """``f_i(w_i)`` and its gradient: (c, p) -> (c,), (c, p)."""
        if work is not None:
            value = self._value(block, w, self._train_forward(block, w, work))
            return value, self._backward(block, w, work)
        value, gradient = np.empty(len(w), w.dtype), np.empty(w.shape, w.dtype)
        for here, part, some_w, room in self._parts(block, w):
            value[here], gradient[here] = self.value_gradient(part, some_w, room)
        return value, gradient

    def gradient(self, block, w, work=None):
        """Gradient of ``f_i`` at ``w_i``: (c, p) -> (c, p).

        With the buffers of :meth:`workspace` it is one of them, which the next call overwrites.
        """
        if work is not None:
            self._train_forward(block, w, work)
            return self._backward(block, w, work)
        gradient = np.empty(w.shape, w.dtype)
        for here, part, some_w, room in self._parts(block, w):
            gradient[here] = self.gradient(part, some_w, room)
        return gradient

    # ------------------------------------------------------------------- prediction

    def decision(self, X, params, index):
        """Raw predictions (n_rows, n_outputs); row r uses the model ``params[index[r]]``."""
        raw = np.empty((X.shape[0], self.n_outputs), dtype=self.dtype)
        X = sparse.csr_array(X) if sparse.issparse(X) else X
        params = np.asarray(params, dtype=self.dtype)
        for k, mine in rows_by_label(index, self._rows_at_once()):
            part = one_client(self.design(X[mine]))
            states = make_states(self.layers, 1, len(mine), self.dtype)
            raw[mine] = self._forward(part, params[k : k + 1], states)[0].T
        if self._of_predictions is None:
            return raw
        at, spread = self._of_predictions
        return at + spread * raw.astype(float)

    def output(self, raw):
        """Predicted targets, class codes or reconstructions of raw predictions."""
        return self.kernel.output(raw)


def check_sizes(hidden_layer_sizes):
    """Hidden layers as a tuple of integers.

    Raises
    ------
    ValueError
        If one of them is no positive integer.
    """
    sizes = np.atleast_1d(np.asarray(hidden_layer_sizes, dtype=object)).ravel().tolist()
    if not all(isinstance(s, Integral) and not isinstance(s, bool) and s > 0 for s in sizes):
        raise ValueError(
            "hidden_layer_sizes must be a positive integer or a sequence of positive integers, "
            f"the units of each hidden layer, got {hidden_layer_sizes!r}."
        )
    return tuple(int(s) for s in sizes)
