"""Checks of a model of PyTorch before anything is sent: parameters, shapes and loss."""

import copy
import pickle
from numbers import Integral

import numpy as np

from ._network import MAX_PARAMS
from ._torch_runner import need_torch
from .losses.log_loss import Logistic, Multinomial

# Difference of outputs for the same rows in another batch, relative to the largest output, that
# rounding stays below; on other devices convolutions in TF32 differ by 5e-3 (H100).
MOST_ROUNDING, MOST_ON_DEVICES = 1e-3, 1e-2


def check_task(model):
    """Raise a ValueError if the task is not that of the loss."""
    if model._is_callable and model.task == "auto":
        raise ValueError(
            "task must be 'classifier', 'regressor' or 'unsupervised', the kind of the targets, "
            f"if loss is a function; got 'auto' with loss={model.loss!r}."
        )
    if model._is_callable or model.task == "auto":
        return
    if model.task == "unsupervised":
        if model.loss != "squared_error":
            raise ValueError(
                "task='unsupervised' goes with loss='squared_error' or a function of the "
                f"output and the input, got loss={model.loss!r}."
            )
    elif model.task != model.estimator_type:
        raise ValueError(
            f"loss={model.loss!r} makes a {model.estimator_type}, got task={model.task!r}."
        )


def check_module(model):
    """Raise an error if the module, or the loss, cannot be copied and sent."""
    torch = need_torch()
    given = isinstance(model.module, torch.nn.Module)
    if not given and not callable(model.module):
        raise TypeError(
            "module must be a torch.nn.Module, a class of them or a function that makes one, "
            f"got {type(model.module).__name__} {model.module!r}."
        )
    if given and model.module_params:
        raise ValueError(
            "module is a module already, and takes no parameters: give its class, or leave "
            f"out {sorted(model.module_params)}."
        )
    for what, value in (("module", model.module), ("loss", model.loss)):
        try:
            pickle.dumps(copy.deepcopy(value))
        except Exception as error:  # whatever its own methods raise
            raise ValueError(
                f"{what} must be something that can be copied and pickled, to be sent to "
                f"clients and kept with the estimator; {value!r} is not: {error} Define it "
                "at the top of a module."
            ) from error


def check_parameters(made, entries):
    """Raise a ValueError if the parameters of a module are no vector to train."""
    if names := [name for name, value in made.named_parameters() if value.is_complex()]:
        raise ValueError(
            f"module must not have complex parameters, got {names}: register real ones with a "
            "last axis of two, and call torch.view_as_complex on them in forward."
        )
    if not any(entry.trained for entry in entries):
        raise ValueError("module must have parameters to train, got none.")
    if entries[-1].stop > MAX_PARAMS:
        raise ValueError(
            f"module must not have more than {MAX_PARAMS} parameters, got {entries[-1].stop}."
        )


def check_rows_apart(last, z, device):
    """Raise a ValueError if outputs of the last rows are others beside more rows."""
    away = np.abs(last - z[:, -last.shape[1] :]).max()
    most = MOST_ROUNDING if device == "cpu" else MOST_ON_DEVICES
    if away > most * np.abs(z).max():
        raise ValueError(
            "module must predict each row by itself in eval mode, but its outputs for rows of X "
            f"differ by up to {away:.2g} if other rows are in the batch. Layers that take the "
            "first axis for time need batch_first=True, and batch normalisation needs "
            "track_running_stats=True; or take LayerNorm or GroupNorm."
        )


def check_output(output, mode, other=None, drawn=False):
    """Raise a ValueError if an output for two rows is no tensor of floats, or not as the other."""
    if drawn:
        raise ValueError(
            f"module must not draw random numbers in {mode} mode: predictions would differ from "
            "call to call. Give functions of dropout training=self.training, and draw only if "
            "self.training is True."
        )
    torch = need_torch()
    got = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output)
    if not isinstance(output, torch.Tensor) or output.shape[:1] != (2,):
        raise ValueError(
            "module must return a tensor with one entry per row, the first axis, got "
            f"{got} for 2 rows in {mode} mode."
        )
    if not output.is_floating_point():
        raise ValueError(f"module must return floats, got {output.dtype} in {mode} mode.")
    if other is not None and output.numel() != other.numel():
        raise ValueError(
            f"module must return as many numbers in both modes, got shape {got} for 2 rows in "
            f"{mode} mode, {tuple(other.shape)} in the other."
        )


def checked_shape(model):
    """Shape of a row, as the module takes it."""
    if model.input_shape is None:
        return (model.n_features,)
    shape = tuple(model.input_shape)
    if not all(isinstance(size, Integral) and size > 0 for size in shape):
        raise ValueError(f"input_shape must hold positive integers, got {model.input_shape!r}.")
    if int(np.prod(shape, dtype=int)) != model.n_features:
        raise ValueError(
            f"input_shape={model.input_shape!r} is {int(np.prod(shape, dtype=int))} numbers, "
            f"the rows of X have {model.n_features}."
        )
    return tuple(int(size) for size in shape)


def kernel_of(model, output_shape):
    """The loss of outputs of a shape, and their number."""
    kernel = model._loss_of(model.n_classes, output_shape, model.shape_)
    outputs = int(np.prod(output_shape, dtype=int))
    if model.task == "unsupervised":
        needed = outputs if model._is_callable else model.n_features
    elif not kernel.classifier:
        needed = outputs if model._is_callable else 1
    else:
        needed = kernel.n_outputs(model.n_classes)
        if (
            model.n_classes in (None, 2)
            and outputs == 2
            and (isinstance(kernel, Logistic) or model._is_callable)
        ):
            needed = 2
            kernel = kernel if model._is_callable else Multinomial()
    if outputs != needed or outputs == 0:
        about = "" if model.n_classes is None else f" and {model.n_classes} classes"
        raise ValueError(
            f"module must have {needed} outputs per row for loss={model.loss!r}{about}, got "
            f"outputs of shape {output_shape}."
        )
    return kernel, outputs
