"""Losses that modules of PyTorch have besides the losses of all models."""

import numpy as np

from ._autoencoder import _Reconstruction
from ._torch_runner import differentiable, need_torch
from .losses import Loss
from .losses.loss import ClassLoss


class ReconstructionLoss(Loss):
    """Half the mean squared error of outputs that reconstruct the input."""

    unknown_scale = True

    def __init__(self):
        self._squares = _Reconstruction("identity")

    def encode(self, y, n_classes, dtype):
        """No targets."""
        raise ValueError("A reconstruction has no targets but its input.")

    def value(self, z, y):
        return self._squares.value(z, y)

    def gradient(self, z, y):
        return self._squares.gradient(z, y)

    def output(self, z):
        """Reconstructions (n_rows, n_outputs)."""
        return z


class CallableLoss(Loss):
    """A function (output, target) -> loss of every row, differentiated by PyTorch.

    Parameters
    ----------
    function : callable
        The function, of tensors.
    output_shape : tuple of int, default=()
        Shape of the module's output for a row.
    target_shape : tuple of int, default=()
        Shape of a row's target.
    """

    grounded = False

    def __init__(self, function, output_shape=(), target_shape=()):
        self.function = function
        self.output_shape, self.target_shape = output_shape, target_shape

    def __repr__(self):
        return getattr(self.function, "__name__", repr(self.function))

    def _tensors(self, z, y):
        torch, n = need_torch(), z.shape[-1]
        output = torch.from_numpy(np.array(z.T, order="C")).view(n, *self.output_shape)
        return output, torch.from_numpy(np.array(y.T, order="C")).view(n, *self.target_shape)

    def _rows(self, output, target):
        torch = need_torch()
        values = self.function(output, target)
        if not isinstance(values, torch.Tensor) or values.shape != (len(output),):
            got = tuple(getattr(values, "shape", ())) if hasattr(values, "shape") else values
            raise ValueError(
                f"loss must return one number per row, a tensor of shape ({len(output)},) for "
                f"{len(output)} rows, got {got!r}: losses of PyTorch do with reduction='none'."
            )
        return values

    def value(self, z, y):
        output, target = self._tensors(z, y)
        with need_torch().no_grad():
            return self._rows(output, target).numpy().astype(z.dtype, copy=False)

    @differentiable()
    def gradient(self, z, y):
        torch = need_torch()
        output, target = self._tensors(z, y)
        output.requires_grad_()
        (slope,) = torch.autograd.grad(self._rows(output, target).sum(), output)
        return slope.reshape(z.shape[-1], -1).numpy().T

    def output(self, z):
        """The module's first output is the prediction."""
        return z[:, 0]


class CallableClassLoss(ClassLoss, CallableLoss):
    """Such a function with class codes as targets."""

    grounded = False

    def encode(self, y, n_classes, dtype):
        return np.asarray(y, dtype=np.int64)[:, None]


class CallableReconstruction(CallableLoss):
    """Such a function with the inputs as targets."""

    def output(self, z):
        """Outputs (n_rows, n_outputs)."""
        return z
