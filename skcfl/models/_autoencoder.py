"""Autoencoder as a local model: no targets."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse
from scipy.special import expit
from sklearn.utils._param_validation import StrOptions

from .._option_objects import parameters
from .._typing import Activation, LayerSizes
from ._network import NETWORK_CONSTRAINTS, Network


@parameters
class Autoencoder(Network):
    r"""Autoencoder: a network that reconstructs its input through a narrow layer.

    Client i's objective is its mean loss, with the penalty of :class:`MLP`; the loss of a row `x`
    with `d` features is the mean over them of half the squared error,

    .. math:: \frac{1}{2d} \|\hat x - x\|^2 ,

    of standardised features.

    Clients with similar rows are reconstructed by the same model, so that methods which choose by
    loss find clusters of clients without any targets.  ``predict`` returns reconstructions, and
    ``score`` minus the mean loss.

    Parameters
    ----------
    hidden_layer_sizes : int or sequence of int, default=(32,)
        Units of each hidden layer, from the first after the input to the last before the output:
        ``(64, 16, 64)`` has a code of 16 numbers.
    activation : {"relu", "tanh", "logistic", "identity"}, default="relu"
        Activation of the hidden layers.
    output_activation : {"identity", "sigmoid"}, default="identity"
        Activation of the reconstruction.  ``"sigmoid"`` suits features in [0, 1], such as
        pixels, and can reconstruct no others.
    alpha : float, default=1e-4
        L2 penalty of the weights of all layers.
    precision : {"single", "double"}, default="single"
        Floating type of parameters and computations, whatever the type of the rows.
    standardize : bool, default=True
        Whether an estimator trains on features of mean 0 and variance 1 over the rows of all
        clients, so that losses do not depend on units; reconstructions are in the user's.
        Features in [0, 1], with ``output_activation="sigmoid"``, stay as they are.

    Notes
    -----
    Rows may be sparse; their reconstructions are dense.

    Examples
    --------
    >>> from skcfl.models import Autoencoder
    >>> model = Autoencoder((8,), output_activation="sigmoid").bind(n_features=64)
    >>> model.estimator_type is None, model.n_outputs, model.n_params
    (True, 64, 1096)
    """

    _parameter_constraints = {
        **NETWORK_CONSTRAINTS,
        "output_activation": [StrOptions({"identity", "sigmoid"})],
    }

    #: The size of the rows' differences to their reconstructions is not known.
    unknown_scale = True

    hidden_layer_sizes: LayerSizes = (32,)
    activation: Activation = "relu"
    output_activation: Literal["identity", "sigmoid"] = "identity"
    alpha: float = 1e-4
    precision: Literal["single", "double"] = "single"
    standardize: bool = True

    def with_scaling(self, scaling):
        """Bound network that scales features and reconstructions; see ``ModelSpec``."""
        model, left = super().with_scaling(scaling)
        if scaling is not None:
            model._of_predictions = scaling.mean, scaling.scale
        return model, left

    def _bind_loss(self):
        self.n_outputs = self.n_features
        self.standardize &= self.output_activation == "identity"
        self.kernel = _Reconstruction(self.output_activation)

    def _plain_output(self):
        return "logistic" if self.output_activation == "sigmoid" else "identity"

    def _target(self, block):
        return block.dense().transpose(0, 2, 1)

    def encode(self, y, n_rows):
        """No targets: an array of shape (n_rows, 0)."""
        return np.empty((n_rows, 0), dtype=self.dtype)

    def row_losses(self, X, y, params, index):
        """Loss of every row, no penalty."""
        z, rows = self.decision(X, params, index), self.design(X)
        if self._of_predictions is not None:
            at, spread = self._of_predictions
            z = (z - at) / spread
        rows = rows.toarray() if sparse.issparse(rows) else rows
        return self.kernel.value(z.T, rows.T)


class _Reconstruction:
    """Half the mean squared error of the activated predictions ``z`` (..., d, n)."""

    #: Networks have units of their own, whatever those of the features.
    link = None

    def __init__(self, activation):
        self.sigmoid = activation == "sigmoid"

    def value(self, z, x):
        r = (expit(z) if self.sigmoid else z) - x
        return 0.5 * np.einsum("...dn,...dn->...n", r, r) / z.shape[-2]

    def gradient(self, z, x):
        if not self.sigmoid:
            return (z - x) / z.shape[-2]
        p = expit(z)
        slope = (1.0 - p) * p
        p -= x
        p *= slope
        p /= z.shape[-2]
        return p

    def output(self, z):
        """Reconstructions of raw predictions ``(n_rows, d)``."""
        return expit(z) if self.sigmoid else z
