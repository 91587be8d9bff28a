"""The interface of local models, which clients train."""

from abc import abstractmethod
from math import isfinite

import numpy as np

from ..numerics.matrices import slices
from ._spec import ModelSpec

# Bytes of the losses of rows, or of their predictions, that are computed at a time: blocks bound
# the rows, and not the models. Each new client's, of thousands, may be asked.
LOSS_BYTES = 2**21


class LocalModel(ModelSpec):
    """Base of the local models: what clients compute.

    To what the server knows of it a model adds methods that take a `block` and compute for all
    of its clients at once (shapes in ``skcfl.clients.blocks``).

    ``f_i`` is the weighted mean loss over client i's rows plus the local penalty.
    """

    def check_target(self, y):
        """Raise a ValueError if the targets do not suit the model."""

    @abstractmethod
    def design(self, X):
        """Design matrix that the blocks store for features `X`."""

    @abstractmethod
    def encode(self, y, n_rows):
        """Targets as an array (n_rows, q) that the blocks store."""

    def try_rows(self, X, y):
        """Raise a ValueError if the model fails on rows X, of encoded targets (n, q)."""

    def losses(self, block, theta):
        """Mean loss of every client under every model, no penalty: (K, p) -> (c, K)."""
        parts = (self.losses_of_rows(block, some) for some in self._models_at_once(block, theta))
        return np.hstack([np.einsum("ckn,cn->ck", part, block.weights) for part in parts])

    def _models_at_once(self, block, theta):
        """Parts of the models (K, p) that have about so many losses of rows."""
        c, n, _ = block.shape
        number = max(LOSS_BYTES // (4 * c * n * self.n_outputs or 1), 1)
        return [theta[some] for some in slices(len(theta), number)]

    def losses_of_rows(self, block, theta):
        """Loss of every row under every model: (K, p) -> (c, K, n)."""
        raise ValueError(f"{type(self).__name__} has no losses of single rows to mix models by.")

    def best_response(self, block, theta, fixed=None):
        """Losses (c, K), choices (c,), gradients of ``f_i`` at the choice (c, p)."""
        losses = self.losses(block, theta)
        choice = choose(losses, fixed)
        return losses, choice, self.gradient(block, theta[choice])

    @abstractmethod
    def value_gradient(self, block, w, work=None):
        """``f_i(w_i)`` and its gradient: (c, p) -> (c,), (c, p).

        `work` is what :meth:`workspace` made: the gradient may be a part of it.
        """

    def value(self, block, w):
        """``f_i(w_i)``: (c, p) -> (c,)."""
        return self.value_gradient(block, w)[0]

    def gradient(self, block, w, work=None):
        """Gradient of ``f_i`` at ``w_i``: (c, p) -> (c, p), which the caller may overwrite.

        `work` is what :meth:`workspace` made: the answer may be a part of it.
        """
        return self.value_gradient(block, w)[1]

    def workspace(self, block, n_rows=None, terms=None):
        """Buffers for the steps of local training on `block`, or on batches of `n_rows` rows.

        None if the model needs none.  `terms` are frozen parameters and prototypes.
        """
        return None

    def upper_layers(self, block, w, trained):
        """The layers from the first one trained on, as a model of what they see of every row.

        Parameters
        ----------
        block : Block
            Rows.
        w : ndarray of shape (c, n_params)
            Models.
        trained : ndarray of shape (n_params,) of bool
            Parameters that are trained.

        Returns
        -------
        model : LocalModel
            This model where there is no smaller one.
        block : Block
            The rows of a block of clients.
        below : int
            Number of the parameters of the layers below, which come first.
        values : ndarray of shape (c,) or float
            Penalty of the layers below.
        """
        return self, block, 0, 0.0

    def representation(self, block, w):
        """Input of the last layer for each row: (c, p) -> (c, n, n_representation)."""
        raise ValueError(f"{type(self).__name__} has no representation of rows.")

    def classes_of(self, block):
        """Code of each row's class, (c, n), of classifiers."""
        return self.kernel.codes(block.y)

    def clients_at_once(self, block):
        """How many clients of a block to train together, one group after the other."""
        return max(len(block.clients), 1)


def check_class_weight(model):
    """Raise a ValueError if a regressor weighs classes."""
    if model.class_weight is not None and model.estimator_type != "classifier":
        raise ValueError(
            f"class_weight is for classifiers; loss={model.loss!r} makes a regressor. Got "
            f"class_weight={model.class_weight!r}."
        )


def choose(losses, fixed=None):
    """Model of least loss of every client, (c,); a loss of NaN is not chosen.

    Clients with an entry of `fixed` that is not negative keep that model.
    """
    choice = losses.argmin(axis=1)
    if not isfinite(losses.sum()):
        choice = np.where(np.isfinite(losses), losses, np.inf).argmin(axis=1)
    if fixed is not None:
        choice = np.where(fixed >= 0, fixed, choice)
    return choice
