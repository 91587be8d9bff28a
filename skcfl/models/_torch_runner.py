"""A module of PyTorch as a function of one vector: where its parameters are, and what runs it."""

import copy
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .._checks import needs

# The generator that dropout draws from is one for all threads.
_DRAWS = threading.RLock()


def need_torch():
    """Import PyTorch, which is an extra.

    Raises
    ------
    ImportError
        If it is not installed, with the command that installs it.
    """
    with needs(
        "TorchModel needs PyTorch: python -m pip install 'skcfl[torch]'. For processors only, the "
        "smaller package is python -m pip install torch --index-url "
        "https://download.pytorch.org/whl/cpu"
    ):
        import torch
    return torch


@contextmanager
def seeded(seed):
    """Let PyTorch draw by a seed, in this thread only, and put its generators back."""
    torch = need_torch()
    cuda = torch.cuda.is_initialized()
    with _DRAWS:
        before = torch.get_rng_state(), torch.cuda.get_rng_state_all() if cuda else None
        torch.default_generator.manual_seed(int(seed))
        if cuda:
            torch.cuda.manual_seed_all(int(seed))
        try:
            yield
        finally:
            torch.set_rng_state(before[0])
            if cuda:
                torch.cuda.set_rng_state_all(before[1])


@contextmanager
def differentiable():
    """Record gradients, also if the caller has turned them off for itself."""
    torch = need_torch()
    with torch.inference_mode(False), torch.enable_grad():
        yield


def cast(module, kind, device="cpu"):
    """Move a module, with its floats in a type of PyTorch and complex numbers as precise."""

    def convert(tensor):
        if tensor.is_complex():  # Module.to would drop the imaginary part
            return tensor.to(device, kind.to_complex())
        return tensor.to(device, kind if tensor.is_floating_point() else None)

    return module._apply(convert)


@dataclass(frozen=True)
class Entry:
    """Place of a tensor in the vector.

    Attributes
    ----------
    owner : str
        Name of the module that has it, empty of the module itself.
    name : str
        Its name there.
    start : int
        Position at which it begins in the vector.
    shape : tuple of int
        Its shape.
    trained : bool
        True if steps of an optimiser move it: parameters that need a gradient.
    buffer : bool
        True if it is a buffer.
    """

    owner: str
    name: str
    start: int
    shape: tuple
    trained: bool
    buffer: bool

    @property
    def stop(self):
        """End of the tensor."""
        return self.start + int(np.prod(self.shape, dtype=int))

    @property
    def path(self):
        """Its name in the whole module."""
        return f"{self.owner}.{self.name}" if self.owner else self.name

    @property
    def layer(self):
        """Name of the layer that it is part of."""
        return self.owner or self.name

    def tensor(self, module):
        """The tensor, of a module with the same structure."""
        return getattr(module.get_submodule(self.owner), self.name)


def entries_of(module):
    """Places of all parameters and buffers of floats, in the order of ``named_parameters``.

    Buffers follow the parameters of their module; what several modules share is there once.
    """
    entries, start, seen = [], 0, set()
    for owner, part in module.named_modules():
        constant = part._non_persistent_buffers_set
        own = [(name, p, False) for name, p in part.named_parameters(recurse=False)]
        own += [
            (name, b, True)
            for name, b in part.named_buffers(recurse=False)
            if b.is_floating_point() and name not in constant
        ]
        for name, tensor, buffer in own:
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            trained = not buffer and tensor.requires_grad
            entries.append(Entry(owner, name, start, tuple(tensor.shape), trained, buffer))
            start = entries[-1].stop
    return entries


def vector_of(module, entries, dtype):
    """Parameters and buffers of a module as one vector."""
    out = np.empty(entries[-1].stop if entries else 0, dtype)
    for entry in entries:
        values = entry.tensor(module).detach().to("cpu").numpy()
        out[entry.start : entry.stop] = values.ravel()
    return out


def _check_ids(part, inputs):
    """Raise an IndexError, as the processor does, of ids that an embedding does not have."""
    ids, maps = inputs[0], need_torch()._C._functorch
    while maps.is_functorch_wrapped_tensor(ids):  # of all clients that vmap stacks
        ids = maps.get_unwrapped(ids)
    if not ids.numel():
        return
    low, high = (int(bound) for bound in ids.aminmax())
    if low < 0 or high >= part.num_embeddings:
        raise IndexError(
            f"index out of range: ids must be 0 to {part.num_embeddings - 1}, got "
            f"{low if low < 0 else high}."
        )


class Runner:
    """A copy of a module that computes with parameters of a vector, for one thread.

    On the processor the parameters are views of the vector: nothing is copied, and what training
    writes into buffers is written into the vector.

    Parameters
    ----------
    module : torch.nn.Module
        Module to copy.
    entries : list of Entry
        Position of its parameters.
    dtype : dtype
        Type of the parameters.
    device : str
        Device to compute on.
    head : str
        Name of the module with the representation as input.
    input_shape : tuple of int
        Shape of what the module takes for a row.
    whole : bool
        True if it takes integers.
    """

    @differentiable()
    def __init__(self, module, entries, dtype, device, head, input_shape, whole):
        torch = need_torch()
        self.torch, self.device, self.dtype = torch, device, np.dtype(dtype)
        kind = torch.float64 if self.dtype == np.float64 else torch.float32
        self.module = cast(copy.deepcopy(module), kind, device).eval()
        self.input_shape, self.whole = input_shape, whole
        self.places = [(entry.tensor(self.module), entry) for entry in entries]
        self.trained = [t for t, entry in self.places if entry.trained]
        self.spans = [slice(e.start, e.stop) for _, e in self.places if e.trained]
        self.buffers = [(t, e) for t, e in self.places if e.buffer]
        parts, nn = list(self.module.modules()), torch.nn
        self.norms = [p for p in parts if isinstance(p, nn.modules.batchnorm._BatchNorm)]
        #: Normalisations by running statistics in training, too.
        self.frozen = []
        self.embeddings = [p for p in parts if isinstance(p, (nn.Embedding, nn.EmbeddingBag))]
        for part in self.embeddings:
            part.sparse = False  # gradients go into a dense vector
        sent = {id(tensor) for tensor, _ in self.places}
        #: Buffers that are not sent, such as counters, and their first values.
        self.others = [
            (part, name, buffer, buffer.detach().clone())
            for part in parts
            for name, buffer in part.named_buffers(recurse=False)
            if id(buffer) not in sent
        ]
        self.loaded, self.seen = None, None
        self.module.get_submodule(head).register_forward_pre_hook(self._see)
        if device != "cpu":
            self._prepare()

    def _see(self, part, inputs):
        self.seen = inputs[0] if inputs else None

    def _prepare(self):
        """Guard embeddings, and let the thread of gradients meet the device.

        An id that an embedding does not have would end the process's use of a GPU, long after the
        call. The gradient of a sum spares a warning: cuBLAS expects a context in its thread.
        """
        torch = self.torch
        for part in self.embeddings:
            part.register_forward_pre_hook(_check_ids)
        torch.ones(1, device=self.device, requires_grad=True).sum().backward()

    @differentiable()
    def load(self, w, own=None):
        """Take the parameters from a vector (n_params,), and buffers from `own` if it is given."""
        given = [w] if own is None else [w, own]
        at = [values.__array_interface__["data"][0] for values in given]
        if self.device == "cpu" and self.loaded is not None and self.loaded[0] == at:
            return
        for k, values in enumerate(given):
            if values.dtype != self.dtype or not values.flags.writeable:
                given[k], at = np.array(values, self.dtype), None
        flat = self.torch.from_numpy(given[0]).to(self.device)
        for tensor, entry in self.places:
            tensor.data = flat[entry.start : entry.stop].view(entry.shape)
        #: Positions of the buffers, as arrays.
        self.homes = [given[0][entry.start : entry.stop] for _, entry in self.buffers]
        if own is not None:
            cuts = np.cumsum([0, *(entry.stop - entry.start for _, entry in self.buffers)])
            self.homes = [given[1][a:b] for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
            for (tensor, entry), home in zip(self.buffers, self.homes, strict=True):
                tensor.data = self.torch.from_numpy(home).to(self.device).view(entry.shape)
        # Kept, so that no other vector comes to lie in the same place.
        self.loaded = at, given

    def freeze(self, frozen):
        """Keep the running statistics among frozen entries, (n_params,) of bool."""
        owners = dict.fromkeys(e.owner for _, e in self.buffers if frozen[e.start])
        parts = map(self.module.get_submodule, owners)
        self.frozen = [part for part in parts if part in self.norms]

    @differentiable()
    def begin(self):
        """Let buffers that are not sent begin anew: no client sees those of another."""
        for part, name, buffer, first in self.others:
            # The same tensor: modules may share it.
            buffer.detach_().data = first.clone()
            setattr(part, name, buffer)

    def inputs(self, X):
        """Rows (n, n_features) as the module takes them."""
        x = self.torch.from_numpy(X if X.flags.writeable else X.copy()).to(self.device)
        x = x.view(len(X), *self.input_shape)
        return x.long() if self.whole else x

    def outputs(self, X):
        """Raw predictions (n, n_outputs) without gradients, dropout at rest."""
        with self.torch.inference_mode():
            return self._call(self.inputs(X))[0].cpu().numpy()

    def representations(self, X):
        """Input of the last layer of rows, (n, n_representation)."""
        with self.torch.inference_mode():
            return self._call(self.inputs(X))[1].reshape(len(X), -1).cpu().numpy()

    @differentiable()
    def forward(self, X, training=False, seed=None):
        """Predictions (n, n_outputs) and representations, to be differentiated.

        Buffers follow the rows in training, and dropout draws by the seed.
        """
        if not training:
            return self._call(self.inputs(X))
        self.module.train()
        for part in self.norms if len(X) == 1 else self.frozen:
            part.eval()
        try:
            if seed is None:
                out = self._call(self.inputs(X))
            else:
                with seeded(seed):
                    out = self._call(self.inputs(X))
        finally:
            self.module.eval()
        for (tensor, entry), home in zip(self.buffers, self.homes, strict=True):
            found = entry.tensor(self.module)
            # On a device, or the module assigned another tensor.
            if found is not tensor or found.data_ptr() != home.__array_interface__["data"][0]:
                home[...] = found.detach().cpu().numpy().ravel()
                setattr(self.module.get_submodule(entry.owner), entry.name, tensor)
                self.loaded = None
        return out

    def functional(self, parts, x):
        """Predictions of rows with parameters by name, for transformations of functions."""
        return self.torch.func.functional_call(self.module, parts, (x,)).reshape(len(x), -1)

    def maps(self):
        """True if ``vmap`` takes the module, tried where it would be used."""
        if self.device == "cpu":
            return True
        kind = self.torch.int64 if self.whole else self.places[0][0].dtype
        x = self.torch.zeros(1, 2, *self.input_shape, dtype=kind, device=self.device)
        parts = {entry.path: tensor.detach()[None] for tensor, entry in self.places}
        try:
            self.torch.vmap(self.functional)(parts, x)
        except (RuntimeError, ValueError, TypeError):
            return False
        return True

    def _call(self, x):
        self.seen = None
        try:
            out = self.module(x)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(
                f"module failed on rows of X of shape {tuple(x.shape[1:])}: {error}"
            ) from error
        return out.reshape(len(x), -1), self.seen

    @differentiable()
    def gradient(self, outputs, slopes, out, trained=None):
        """Write the gradient of the trained parameters into a vector, zero elsewhere.

        Parameters
        ----------
        outputs : list of Tensor
            Tensors that the objective depends on.
        slopes : list of ndarray
            Its derivatives in them.
        out : ndarray of shape (n_params,)
            Parts without a gradient stay as they are.
        trained : ndarray of shape (n_params,) of bool, default=None
            Parameters that need a gradient, all trained ones by default.
        """
        torch, places = self.torch, list(zip(self.spans, self.trained, strict=True))
        if trained is not None:
            places = [(span, tensor) for span, tensor in places if trained[span].any()]
            if not places:
                return
        slopes = [
            torch.from_numpy(slope).to(self.device).view(output.shape)
            for output, slope in zip(outputs, slopes, strict=True)
        ]
        asked = [tensor for _, tensor in places]
        parts = torch.autograd.grad(outputs, asked, slopes, allow_unused=True)
        for (place, _), part in zip(places, parts, strict=True):
            out[place] = 0.0 if part is None else part.reshape(-1).cpu().numpy()
