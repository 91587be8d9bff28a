"""Modules of PyTorch as local models."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy import sparse
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._checks import NOT_NEGATIVE
from .._typing import ClassWeight
from ..numerics.by_cluster import rows_by_label
from ..numerics.matrices import slices
from ._local_model import LocalModel, check_class_weight
from ._supervised import LOSS_CONSTRAINTS, SupervisedMixin
from ._torch_checks import (
    check_module,
    check_output,
    check_parameters,
    check_rows_apart,
    check_task,
    checked_shape,
    kernel_of,
)
from ._torch_losses import (
    CallableClassLoss,
    CallableLoss,
    CallableReconstruction,
    ReconstructionLoss,
)
from ._torch_runner import Runner, cast, differentiable, entries_of, need_torch, seeded, vector_of
from ._torch_training import Stacked, Training, clients_that_fit, own_of
from .losses import LOSSES, Loss, make_loss

# Rows that are predicted together: states of many layers, which no gradient needs.
ROWS_AT_ONCE = 512
# Rows on which a module is tried before anything is sent.
ROWS_TRIED = 32
# Integers up to here are exact in single precision.
MOST_WHOLE = 2**24


class TorchModel(SupervisedMixin, LocalModel):  # type: ignore[override]
    """Any module of PyTorch as what clients train (the extra ``torch``).

    Client i's objective is the mean loss of its rows plus the penalty
    ``alpha / 2`` times the squared norm of the weights: of all parameters with two axes or more.
    All methods that take a local model take it, with the same rounds and messages: the
    parameters are one vector in the order of ``named_parameters``, a numpy array wherever they
    are sent.

    Parameters
    ----------
    module : type, callable or torch.nn.Module
        A class, or a function, that is called with ``**module_params`` and returns the module; or
        a module, which is copied with its weights as the start of the training. Parameters of a
        class can be set and searched (``model__hidden=...`` in a grid).
    loss : str, Loss or callable, default="log_loss"
        The loss of the module's outputs, which have no activation: "log_loss" (one output a class,
        or one of two classes) and "squared_hinge" make a classifier; "squared_error", "huber",
        "quantile", "poisson", "gamma" and "tweedie" a regressor with one output, of whose
        exponential the last three are. An object such as ``Huber(delta=2.0)`` has other values of
        a loss's parameters. A function of the tensors ``(output, target)`` returns one number per
        row: targets are codes of classes (int64), numbers, or the input; it needs ``task``.
    task : {"auto", "classifier", "regressor", "unsupervised"}, default="auto"
        Kind of the targets. "auto" goes by the name of the loss. With "unsupervised" the target is
        the input: "squared_error" is half the mean squared error of the reconstruction.
    alpha : float, default=1e-4
        Strength of the penalty, relative to a client's mean loss, as of :class:`MLP`.
    input_shape : tuple of int, default=None
        Shape of a row as the module takes it, such as ``(1, 28, 28)``; rows of X that are flat are
        reshaped. None is the shape of the rows of X.
    input_dtype : {"float", "int"}, default="float"
        "int" hands the rows to the module as integers of 64 bits, such as the token ids that
        embeddings take.
    head : str, default=None
        Name of the last layer in the module, such as "fc" or "classifier": its input is the
        representation that :class:`~skcfl.FedProtoClassifier` and :class:`~skcfl.FedPACClassifier`
        use, and :class:`~skcfl.FedRep` shares all other layers. None is the last layer that has
        parameters.
    buffers : {"average", "local"}, default="average"
        Buffers of floats, such as the running statistics of batch normalisation: the server
        averages them with the parameters, or each client keeps its buffers and publishes them at
        the end (as in FedBN).
    precision : {"single", "double"}, default="single"
        Floating type of parameters and computations, whatever the type of the rows.
    class_weight : {"balanced"}, dict or None, default=None
        Factor of the weights of each class's rows, for classifiers, as of :class:`LinearModel`.
    device : str, default="auto"
        Device on which clients compute: "cpu", "cuda" or another that PyTorch knows. "auto" is
        "cuda" if there is one. The fitted model is independent of it but for rounding, which
        ``torch.backends.cudnn.allow_tf32 = False`` makes that of single precision.
    **module_params : dict
        Arguments of ``module``, if it is a class or a function.

    Raises
    ------
    ImportError
        When it is bound or fitted and PyTorch is not installed.

    Notes
    -----
    Buffers of floats, such as the running statistics of batch normalisation, belong to the vector,
    behind the parameters of their layer: no optimiser moves them, and predictions use them. With
    ``buffers="local"`` what is sent in their place is what was received, and ``params_`` has each
    client's own; ``cluster_params_`` have the means of the clusters' clients. A batch of one row
    is normalised by the running statistics, as it has no variance. Counters, complex numbers and
    buffers with ``persistent=False`` are not sent, and begin anew in every round. Fits of private
    clients refuse modules with buffers of floats: noise can make a variance negative. Fits of
    masked clients refuse ``buffers="local"`` of layers that are shared.

    Dropout and other draws in training are seeded by the client, the round and the step: they do
    not depend on where or beside whom a client computes, and PyTorch's own generator is left as it
    was. Modules that draw, or have buffers, are trained by local steps, and need
    ``Training(averaging="model")`` (the default for networks). Losses that are reported, by which
    clients choose clusters too, are those of the module in ``eval`` mode. There it has to predict
    each row by itself and to draw nothing, which is tried before the first round.

    Starts are drawn by the module's own initialisation, and so are lazy layers of a module that is
    given (PyTorch cannot copy lazy batch normalisation: give a class); its parameters that need no
    gradient keep their values. ``layer_slices()`` of a bound model names the parts that have
    parameters of their own as PyTorch does, such as ``"conv1"`` or ``"features.0"``; where layers
    are named, "features" stands for all that begin with it.

    Gradient steps need targets of about unit size: scale the target of a regression.

    Examples
    --------
    >>> from torch import nn
    >>> from skcfl import IFCA
    >>> from skcfl.datasets import make_clustered_classification
    >>> from skcfl.models import TorchModel
    >>> data = make_clustered_classification(n_clients=6, n_clusters=2, random_state=0)
    >>> net = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 2))
    >>> ifca = IFCA(TorchModel(net), n_clusters=2, max_iter=20, tol=0, random_state=0)
    >>> ifca.fit(data.X, data.y, groups=data.groups).cluster_sizes_
    array([3, 3])
    >>> ifca.client_model(data.groups[0])
    Sequential(
      (0): Linear(in_features=..., out_features=16, bias=True)
      (1): ReLU()
      (2): Linear(in_features=16, out_features=2, bias=True)
    )
    """

    _parameter_constraints = {
        "loss": [*LOSS_CONSTRAINTS["loss"], callable],
        "task": [StrOptions({"auto", "classifier", "regressor", "unsupervised"})],
        "alpha": [NOT_NEGATIVE],
        "input_shape": [tuple, list, None],
        "input_dtype": [StrOptions({"float", "int"})],
        "head": [str, None],
        "buffers": [StrOptions({"average", "local"})],
        "precision": [StrOptions({"single", "double"})],
        "class_weight": LOSS_CONSTRAINTS["class_weight"],
        "device": [str],
    }

    any_rank = True

    def __init__(
        self,
        module: Any,
        *,
        loss: Any = "log_loss",
        task: Literal["auto", "classifier", "regressor", "unsupervised"] = "auto",
        alpha: float = 1e-4,
        input_shape: Sequence[int] | None = None,
        input_dtype: Literal["float", "int"] = "float",
        head: str | None = None,
        buffers: Literal["average", "local"] = "average",
        precision: Literal["single", "double"] = "single",
        class_weight: ClassWeight = None,
        device: str = "auto",
        **module_params: Any,
    ) -> None:
        self.module = module
        self.loss = loss
        self.task = task
        self.alpha = alpha
        self.input_shape = input_shape
        self.input_dtype = input_dtype
        self.head = head
        self.buffers = buffers
        self.precision = precision
        self.class_weight = class_weight
        self.device = device
        self.module_params = module_params

    # --------------------------------------------------------------- as an estimator

    def get_params(self, deep=True):
        """Parameters by name, those of the module's class among them.

        Parameters
        ----------
        deep : bool, default=True
            As of scikit-learn.

        Returns
        -------
        params : dict
        """
        return {**super().get_params(deep), **self.module_params}

    def set_params(self, **params):
        """Set parameters, also such of the module's class that were not given before.

        Parameters
        ----------
        **params : dict
            Values by name.

        Returns
        -------
        self : object
        """
        known = super().get_params(deep=True)
        others = {name: value for name, value in params.items() if name not in known}
        super().set_params(**{name: params[name] for name in params.keys() - others.keys()})
        self.module_params = {**self.module_params, **others}
        return self

    def __getstate__(self):
        """State without the module that was made, and none on a device."""
        state = dict(super().__getstate__())
        state.pop("_made", None)
        if any(t.device.type != "cpu" for t in _tensors(state["module"])):
            state["module"] = copy.deepcopy(state["module"]).to("cpu")
        return state

    # ----------------------------------------------------------------- what the loss is

    @property
    def _is_callable(self):
        return callable(self.loss) and not isinstance(self.loss, Loss)

    def describe_loss(self):
        """Return the loss, of models that are not bound too."""
        if "kernel" in vars(self):
            return self.kernel
        return self._loss_of(None, (), ())

    def _loss_of(self, n_classes, output_shape, input_shape):
        unsupervised = self.task == "unsupervised"
        if self._is_callable:
            if unsupervised:
                return CallableReconstruction(self.loss, output_shape, input_shape)
            kind = CallableClassLoss if self.task == "classifier" else CallableLoss
            return kind(self.loss, output_shape)
        if unsupervised:
            return ReconstructionLoss()
        if not isinstance(self.loss, Loss) and self.loss not in LOSSES:
            return Loss()  # not valid, which bind says
        return make_loss(self.loss, n_classes)

    @property
    def estimator_type(self):
        """Kind of estimator that the loss makes."""
        return None if self.task == "unsupervised" else super().estimator_type

    # ------------------------------------------------------------- the module and its vector

    @differentiable()
    def _make(self, seed):
        """A copy of the module in ``eval`` mode; the seed draws the weights that are not given."""
        torch = need_torch()
        with seeded(seed):
            given = isinstance(self.module, torch.nn.Module)
            made = self.module if given else self.module(**self.module_params)
            if not isinstance(made, torch.nn.Module):
                raise TypeError(
                    f"module must make a torch.nn.Module, but {self.module!r} made a "
                    f"{type(made).__name__}."
                )
            made = cast(copy.deepcopy(made), self._kind()).eval()
            if _is_lazy(made):  # its layers draw their weights in the first call
                self._called(made, self._zeros())
        return made

    def _kind(self):
        """Type of the parameters as a type of PyTorch."""
        torch = need_torch()
        return torch.float64 if self.dtype == np.float64 else torch.float32

    def _zeros(self):
        """Two rows that the module takes."""
        torch = need_torch()
        kind = torch.int64 if self.input_dtype == "int" else self._kind()
        return torch.zeros(2, *self.shape_, dtype=kind)

    def for_rows(self, shape):
        """Model of rows of several axes, which are flat where they are stored."""
        model = copy.copy(self)
        if model.input_shape is None:
            model.input_shape = tuple(shape)
        return model

    def bind(self, n_features, n_classes=None, dtype=float):
        """Copy of the model that knows the shape of the data; see ModelSpec."""
        self._validate_params()
        check_module(self)
        return super().bind(n_features, n_classes, dtype)

    def _bind(self):
        check_class_weight(self)
        check_task(self)
        self.dtype = np.dtype(np.float32 if self.precision == "single" else np.float64)
        self.shape_ = checked_shape(self)
        self._device()
        made = self._made = self._make(0)
        with seeded(0):
            output_shape = self._try_out(made)
        self.entries = entries_of(made)
        self.n_params = self.entries[-1].stop if self.entries else 0
        check_parameters(made, self.entries)
        #: Parameters that steps move, None for all.
        self.moved = self._mask(lambda entry: entry.trained)
        self.moved = None if self.moved.all() else self.moved
        buffers = self._mask(lambda entry: entry.buffer)
        self.statistics = buffers if buffers.any() else None
        #: Buffers that stay with the clients.
        self.own = self.statistics if self.buffers == "local" else None
        self.local_steps_only = (
            self.stochastic or self.counts or any(e.buffer for e in self.entries)
        )
        #: Whether clients may be stacked: nothing is drawn or kept, and vmap takes the module.
        self.stackable = not self.local_steps_only and (
            self._device() == "cpu" or self._runner().maps()
        )
        self.kernel, self.n_outputs = kernel_of(self, output_shape)
        self.alpha_ = float(self.alpha)
        #: Penalty of each parameter.
        self.decay = np.where(
            self._mask(lambda entry: entry.trained and len(entry.shape) > 1), self.alpha_, 0.0
        )

    def _device(self):
        """Device of the computations, as PyTorch names it here."""
        torch = need_torch()
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device={self.device!r} is not there: {error}") from error
        return self.device

    @differentiable()
    def _try_out(self, made):
        """Shape of the module's output for a row; sets what else a call shows."""
        torch = need_torch()
        x = self._zeros()
        before, output = torch.get_rng_state(), self._called(made, x)
        check_output(output, "eval", drawn=not torch.equal(before, torch.get_rng_state()))
        layers = list(dict.fromkeys(e.layer for e in entries_of(made) if not e.buffer))
        self.head_ = self.head if self.head is not None or not layers else layers[-1]
        try:
            last = made.get_submodule(self.head_ or "")
        except AttributeError:
            if self.head is not None:
                raise ValueError(
                    f"head must be the name of a part of the module, got {self.head!r}; there are "
                    f"{[name for name, _ in made.named_modules() if name]}."
                ) from None
            self.head_, last = "", made  # which has no parts
        seen, states = [], []
        hooks = [last.register_forward_pre_hook(lambda part, inputs: seen.append(inputs))]
        hooks += [
            part.register_forward_hook(lambda part, inputs, output: states.append(output))
            for part in made.modules()
            if not list(part.children())
        ]
        trained = copy.deepcopy(made).train()
        kept = list(trained.buffers())  # no other tensor comes to lie in their place
        first = [(id(b), b._version, b.data_ptr()) for b in kept]
        check_output(self._called(trained, x), "train", output)
        self.stochastic = not torch.equal(before, torch.get_rng_state())
        #: True if training changes buffers, such as counters of batches.
        self.counts = first != [(id(b), b._version, b.data_ptr()) for b in trained.buffers()]
        self._called(made, x)
        for hook in hooks:
            hook.remove()
        #: Numbers that the layers return for a row.
        self.n_states = sum(t.numel() for t in states if isinstance(t, torch.Tensor)) // 2
        first = seen[0][0] if seen and seen[0] else None
        fits = isinstance(first, torch.Tensor) and len(first) == 2
        self.n_representation = first[0].numel() if fits else 0
        return tuple(output.shape[1:])

    def _called(self, made, x):
        """Output of the module; an error is raised in terms of its parameters."""
        try:
            with need_torch().no_grad():
                return made(x)
        except Exception as error:  # whatever the user's code raises
            raise ValueError(
                f"module cannot take rows of shape {self.shape_} ({x.dtype}; see input_shape and "
                f"input_dtype): {type(error).__name__}: {error}"
            ) from error

    def _template(self):
        """The module that runners copy, made anew after pickling."""
        if "_made" not in vars(self):
            self._made = self._make(0)
        return self._made

    def _mask(self, which):
        mask = np.zeros(self.n_params, dtype=bool)
        for entry in self.entries:
            mask[entry.start : entry.stop] = which(entry)
        return mask

    def _runner(self, dtype=None):
        return Runner(
            self._template(),
            self.entries,
            self.dtype if dtype is None else dtype,
            self._device(),
            self.head_,
            self.shape_,
            self.input_dtype == "int",
        )

    def init_params(self, n_models, random_state):
        """Random starts by the module's own initialisation, (n_models, n_params)."""
        rng = check_random_state(random_state)
        out = np.empty((n_models, self.n_params), self.dtype)
        for k in range(n_models):
            out[k] = vector_of(self._drawn(rng.randint(2**31 - 1)), self.entries, self.dtype)
        return out

    def start(self, random_state=None):
        """Start of local training: the weights that were given, the others drawn."""
        if isinstance(self.module, need_torch().nn.Module) and not _is_lazy(self.module):
            return vector_of(self._template(), self.entries, self.dtype)
        made = self._make(check_random_state(random_state).randint(2**31 - 1))
        return vector_of(made, self.entries, self.dtype)

    def _drawn(self, seed):
        torch = need_torch()
        if not isinstance(self.module, torch.nn.Module):
            return self._make(seed)
        made = copy.deepcopy(self._template())
        owners = dict.fromkeys(entry.owner for entry in self.entries if entry.trained)
        lacking = sorted(
            owner or type(made).__name__
            for owner in owners
            if not hasattr(made.get_submodule(owner), "reset_parameters")
        )
        if lacking:
            raise ValueError(
                "module must be a class, or parts that have reset_parameters(), where several "
                f"starts are drawn; {lacking} have none. Give the class."
            )
        with seeded(seed):
            for owner in owners:
                made.get_submodule(owner).reset_parameters()
        with torch.no_grad():
            for entry in self.entries:
                if not (entry.trained or entry.buffer):  # frozen
                    entry.tensor(made).copy_(entry.tensor(self._template()))
        return made

    def layer_slices(self):
        """Slices of the parameter vector by layer name, in the order of the module."""
        slices = {}
        for entry in self.entries:
            first = slices.get(entry.layer, slice(entry.start, None)).start
            slices[entry.layer] = slice(first, entry.stop)
        return slices

    def head_mask(self):
        """Parameters of the last layer of a bound model, (n_params,) of bool."""
        inside = f"{self.head_}." if self.head_ else ""
        return self._mask(lambda entry: f"{entry.layer}.".startswith(inside))

    def head_params(self, weights, biases):
        """Parameters of a linear last layer, as the vector has them."""
        shapes = [entry.shape for entry in self.entries if entry.layer == self.head_]
        if shapes != [weights.T.shape, biases.shape]:
            raise ValueError(
                f"head must name a linear layer with biases and {self.n_outputs} outputs, got "
                f"{self.head_!r} with parameters of shapes {shapes}."
            )
        return np.concatenate([weights.T.ravel(), biases])

    def plain(self, params, classes):
        """The module with the parameters (n_params,) of one model, in ``eval`` mode."""
        made = copy.deepcopy(self._template())
        torch = need_torch()
        with torch.no_grad():
            for entry in self.entries:
                values = np.array(params[entry.start : entry.stop], self.dtype)
                entry.tensor(made).copy_(torch.from_numpy(values).view(entry.shape))
        return made.eval()

    # ------------------------------------------------------------------- rows and targets

    def design(self, X):
        """Features, in the precision of the computations."""
        if sparse.issparse(X):
            raise TypeError(
                "X must be dense for TorchModel, got a sparse matrix: use X.toarray()."
            )
        if self.input_dtype == "int" and X.size:
            if (X != np.floor(X)).any():
                raise ValueError("X must hold integers with input_dtype='int', got fractions.")
            if X.min() < 0 or X.max() > MOST_WHOLE:
                raise ValueError(
                    f"X must hold integers from 0 to {MOST_WHOLE} with input_dtype='int', got "
                    f"{X.min():g} to {X.max():g}."
                )
        return X.astype(self.dtype, copy=False)

    def encode(self, y, n_rows):
        """Targets as an array (n_rows, q) that the blocks store."""
        if self.estimator_type is None:
            return np.empty((n_rows, 0), dtype=self.dtype)
        return self.kernel.encode(y, self.n_classes, self.dtype)

    def try_rows(self, X, y):
        """Raise a ValueError if the module or its loss fails on some of the rows."""
        if not X.shape[0]:
            return
        some = np.unique(np.linspace(0, X.shape[0] - 1, ROWS_TRIED).astype(int))
        if self.input_dtype == "int":
            some = np.append(some, X.max(axis=1).argmax())
        X, y = self.design(X[some]), y[some]
        runner = self._runner()
        runner.load(vector_of(self._template(), self.entries, self.dtype))
        z = runner.outputs(X).T
        if not np.isfinite(z).all():
            raise ValueError(
                "module has outputs that are not finite on rows of X, with the weights that it "
                "begins with."
            )
        check_rows_apart(runner.outputs(X[-2:]).T, z, runner.device)
        values = self.kernel.value(z, self.targets(X, y.T))
        if not np.isfinite(values).all():
            raise ValueError(
                f"loss={self.loss!r} is not finite on rows of X and y, with the weights that the "
                "module begins with."
            )

    def targets(self, X, y):
        """Targets (q, n) of rows, which are the rows themselves where there are no others."""
        return X.T if self.estimator_type is None else y

    # ------------------------------------------------------------------ first order

    mixes = True

    def _stacks(self):
        """True if several clients are computed in one call."""
        return self.stackable and self._device() != "cpu"

    def clients_at_once(self, block):
        """One client after the other, for the cache; on a GPU those that fit."""
        if not self._stacks():
            return 1
        rows, size = block.shape[1], block.dtype.itemsize
        states = self.n_features + self.n_states
        return clients_that_fit(rows, states, self.n_params, size, self._device())

    def workspace(self, block, n_rows=None, terms=None):
        """State that the steps of local training share."""
        runner = self._runner(block.dtype)
        if self._stacks() and (terms is None or terms.prototypes is None):
            return Stacked(self, runner)
        return Training(self, runner, terms)

    def losses_of_rows(self, block, theta):
        """Loss of every row under every model: (K, p) -> (c, K, n), zero of padding."""
        c, n, d = block.shape
        values = np.zeros((len(theta), c * n), block.dtype)
        X, y = block.X.reshape(c * n, d), block.y.transpose(1, 0, 2).reshape(-1, c * n)
        rows = [n * i + np.arange(length) for i, length in enumerate(block.lengths)]
        pieces = [(rows[i], own_of(block, i)) for i in range(c)]
        if block.own is None:
            pieces = [(np.concatenate(rows), None)]
        runner = self._runner(block.dtype)
        for k in range(len(theta)):
            for mine, own in pieces:
                runner.load(theta[k], own)
                for at in slices(len(mine), ROWS_AT_ONCE):
                    some = mine[at]
                    part = X[some]
                    z = runner.outputs(part).T
                    values[k, some] = self.kernel.value(z, self.targets(part, y[:, some]))
        return values.reshape(-1, c, n).transpose(1, 0, 2)

    def _penalty(self, w):
        return 0.5 * (w * w) @ self.decay.astype(w.dtype)

    def value(self, block, w):
        """``f_i(w_i)``: (c, p) -> (c,)."""
        value, runner = self._penalty(w), self._runner(block.dtype)
        for i in range(len(w)):
            runner.load(w[i], own_of(block, i))
            for some in slices(block.lengths[i], ROWS_AT_ONCE):
                X = block.X[i, some]
                rows = self.kernel.value(runner.outputs(X).T, self.targets(X, block.y[i][:, some]))
                value[i] += rows @ block.weights[i, some]
        return value

    def value_gradient(self, block, w, work=None):
        """``f_i(w_i)`` and its gradient: (c, p) -> (c,), (c, p)."""
        runner = self._runner(block.dtype) if work is None else work.runner
        value, still = self._penalty(w), Training(self, runner, None, False)
        # As in the work: the gradient of those parameters only.
        still.trained = getattr(work, "trained", None)
        gradient = still.gradient(block, w, value)
        return value, gradient

    def gradient(self, block, w, work=None):
        """Gradient of ``f_i`` at ``w_i``: (c, p) -> (c, p).

        With what :meth:`workspace` made it is that of training, with dropout; it is overwritten by
        the next call.
        """
        if work is None:
            return self.value_gradient(block, w)[1]
        return work.gradient(block, w)

    def representation(self, block, w):
        """Input of the last layer of every row: (c, p) -> (c, n, n_representation)."""
        self.need_representation()
        out = np.zeros((*block.shape[:2], self.n_representation), block.dtype)
        runner = self._runner(block.dtype)
        for i in range(len(w)):
            runner.load(w[i], own_of(block, i))
            for some in slices(block.lengths[i], ROWS_AT_ONCE):
                out[i, some] = runner.representations(block.X[i, some])
        return out

    def need_representation(self):
        """Raise a ValueError if the last layer takes nothing that is one."""
        if not self.n_representation:
            raise ValueError(
                "head must name a part of the module that takes one tensor with an entry per row, "
                f"the representation; {self.head_!r} does not."
            )

    # ------------------------------------------------------------------- prediction

    def decision(self, X, params, index):
        """Raw predictions (n_rows, n_outputs); row r uses the model ``params[index[r]]``."""
        X, params = self.design(X), np.asarray(params, dtype=self.dtype)
        raw = np.empty((len(X), self.n_outputs), dtype=self.dtype)
        runner = self._runner()
        for k, rows in rows_by_label(index):
            runner.load(params[k])
            for at in slices(len(rows), ROWS_AT_ONCE):
                raw[rows[at]] = runner.outputs(X[rows[at]])
        return raw

    def scores(self, raw):
        """Confidence scores of raw predictions: (n_rows,) with two classes."""
        if self.n_classes == 2 and self.n_outputs == 2:
            return raw[:, 1] - raw[:, 0]
        return super().scores(raw)

    def row_losses(self, X, y, params, index):
        """Loss of every row, no penalty."""
        z = self.decision(X, params, index).T
        target = self.encode(y, len(X)).T
        return self.kernel.value(z, self.targets(self.design(X), target))


def _is_lazy(module):
    """True if some of a module's tensors have no shape before its first call."""
    return any(need_torch().nn.parameter.is_lazy(t) for t in _tensors(module))


def _tensors(module):
    """Parameters and buffers of a module; none if it is no module."""
    if not hasattr(module, "named_parameters") or isinstance(module, type):
        return []
    return [*module.parameters(), *module.buffers()]
