"""What clients compute for models of their own, and what they keep between calls."""

from __future__ import annotations

import numpy as np

from ..numerics.matrices import columns_of
from .draws import mixed
from .optimizers import Batches
from .training import Guide, meta_train, train

# Epochs after which the weights of a blend are taken as they are, and losses whose spread says
# that they have settled (the public code's).
MOST_EPOCHS, SETTLED = 60, 10


class PersonalState:
    """What clients keep between calls, by name: arrays with an entry per client.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    """

    def __init__(self, n_clients):
        self.n_clients, self._kept = n_clients, {}

    def knows(self, name, clients):
        """Which of some clients keep something of this name, (m,) of bool."""
        if name not in self._kept:
            return np.zeros(len(clients), dtype=bool)
        return self._kept[name][1][clients]

    def recall(self, name, clients, otherwise):
        """Copies of what some clients keep, (m, ...); of those that keep nothing `otherwise`."""
        out, known = np.array(otherwise), self.knows(name, clients)
        if known.any():
            out[known] = self._kept[name][0][clients[known]]
        return out

    def keep(self, name, clients, values):
        """Let some clients keep their entries of an array (m, ...)."""
        if name not in self._kept:
            everyone = np.zeros((self.n_clients, *values.shape[1:]), dtype=values.dtype)
            self._kept[name] = everyone, np.zeros(self.n_clients, dtype=bool)
        kept, known = self._kept[name]
        kept[clients], known[clients] = values, True


class PersonalKernels:
    """Calls of :class:`~skcfl.federation.inprocess.InProcessSite` about models of their own."""

    @property
    def _entries(self):
        """Where the state has what these clients keep."""
        return self.positions(slice(None))

    def _seeds(self, draw, stage=0):
        """Seeds of the clients' batches, None where they take all rows."""
        if draw is None:
            return None
        seeds = mixed(*draw, self.places)
        return mixed(seeds, stage) if stage else seeds

    def _train_all(self, w, steps, rates, optimizer, batch_size, seeds, guide=None, **pull):
        """Models (n, p) trained for some steps; those of clients without rows as they are."""
        out = np.array(w)
        rho = pull.get("rho", np.zeros(self.n_clients, dtype=w.dtype))
        center = pull.get("center")

        def work(block, slots):
            out[slots] = train(
                self.model,
                block,
                w[slots],  # a copy, as slots are numbers
                steps[slots],
                rates[slots],
                None if center is None else center[slots],
                rho[slots],
                optimizer,
                batch_size,
                None if seeds is None else seeds[slots],
                guide,
            )

        self._each(work, int(steps.max(initial=0)))
        return out

    # ---------------------------------------------------------- nothing is kept

    def _moreau_update(
        self, w, steps, rates, rho, moves, optimizer, batch_size, draw, n_moves, personal
    ):
        """Descend the Moreau envelope from `w`: proximal points by training, then a move."""
        model, center = np.array(w), np.array(w)
        for k in range(n_moves):
            seeds = self._seeds(draw, k)
            model = self._train_all(
                model, steps, rates, optimizer, batch_size, seeds, rho=rho, center=center
            )
            center -= (moves * rho)[:, None] * (center - model)
        return {"w": model if personal else center}

    def _meta_update(self, w, steps, rates, inner, optimizer, batch_size, draw, exact):
        out, seeds = np.array(w), self._seeds(draw)

        def work(block, slots):
            out[slots] = meta_train(
                self.model,
                block,
                w[slots],
                steps[slots],
                rates[slots],
                inner[slots],
                optimizer,
                batch_size,
                None if seeds is None else seeds[slots],
                exact,
            )

        self._each(work, 2 * int(steps.max(initial=0)))
        return {"w": out}

    def _class_statistics(self, w):
        means, counts, squares = self._class_means(w)
        return {"means": means, "counts": counts, "squares": squares}

    def _class_means(self, w):
        """Means (n, C, q) of the classes' representations, their weights, and mean squares."""
        C, q = self.model.n_classes, self.model.n_representation
        means, counts, squares = self._zeros(C, q), self._zeros(C), self._zeros()

        def work(block, slots):
            A = self.model.representation(block, w[slots]).astype(np.float64)
            own = self.model.classes_of(block)[:, None, :] == np.arange(C)[:, None]
            share = own * block.exact[1][:, None, :]
            total = share.sum(axis=2)
            sums = np.matmul(share, A)
            means[slots] = np.divide(
                sums, total[..., None], out=np.zeros_like(sums), where=total[..., None] > 0
            )
            counts[slots] = total * self.client_weights[slots][:, None]
            squares[slots] = np.einsum("cnq,cnq,cn->c", A, A, block.exact[1])

        self._each(work)
        return means, counts, squares

    # -------------------------------------------------------------- models are kept

    def _keep(self, w):
        self.state.keep("model", self._entries, w)
        return {}

    def _recall(self, w):
        w = self.state.recall("model", self._entries, w)
        if self.model.own is not None:
            w[:, self.model.own] = self.state.recall("own", self._entries, w[:, self.model.own])
        self.memory.keep(self.at, w)
        return {"w": w}

    def _values(self, w):
        return self._objectives(w, None)["values"]

    def _personal_step(self, center, steps, rates, rho, optimizer, batch_size, draw):
        model = self.state.recall("model", self._entries, center)
        seeds = self._seeds(draw)
        model = self._train_all(
            model, steps, rates, optimizer, batch_size, seeds, rho=rho, center=center
        )
        model[self.without_rows] = center[self.without_rows]
        self.state.keep("model", self._entries, model)
        return {}

    def _partial_update(
        self, w, shared, prototypes, strength, stages, rates, optimizer, batch_size, draw
    ):
        """Put what is shared into the models that are kept, train, send what is shared."""
        model = np.zeros((self.n_clients, self.model.n_params), dtype=w.dtype)
        model = self.state.recall("model", self._entries, model)
        columns = columns_of(shared)
        model[:, columns] = w
        values = self._values(model)
        for k, (steps, trained) in enumerate(stages):
            guide = Guide(None if trained.all() else trained, prototypes, strength)
            steps = np.full(self.n_clients, steps)
            seeds = self._seeds(draw, k)
            model = self._train_all(model, steps, rates, optimizer, batch_size, seeds, guide)
        self.state.keep("model", self._entries, model)
        return {"w": model[:, columns], "values": values}

    def _prototype_update(self, prototypes, strength, steps, rates, optimizer, batch_size, draw):
        """Train the models that are kept, representations drawn to prototypes."""
        model = np.zeros((self.n_clients, self.model.n_params), dtype=self.model.dtype)
        model = self.state.recall("model", self._entries, model)
        values, seeds = self._values(model), self._seeds(draw)
        guide = Guide(None, prototypes, strength)
        model = self._train_all(model, steps, rates, optimizer, batch_size, seeds, guide)
        self.state.keep("model", self._entries, model)
        means, counts, _ = self._class_means(model)
        return {"means": means, "counts": counts, "values": values}

    def _blended_update(
        self, w, blended, steps, rates, blend_rate, share, tol, optimizer, batch_size, draw
    ):
        """Blend what is sent into the models that are kept by learned weights, and train."""
        model, values = self._blend(w, blended, blend_rate, share, tol, batch_size, draw)
        seeds = self._seeds(draw)
        model = self._train_all(model, steps, rates, optimizer, batch_size, seeds)
        self.state.keep("model", self._entries, model)
        return {"w": model, "values": values}

    def _blend(self, w, blended, rate, share, tol, batch_size, draw):
        """Adaptive local aggregation: elementwise weights in [0, 1] by gradient descent.

        Returns the models and their objectives.
        """
        if not blended.any():
            return np.array(w), self._values(w)
        trained, blended = blended, columns_of(blended)
        known = self.state.knows("model", self._entries)
        begun = self.state.knows("weights", self._entries)
        out = np.array(w)
        old = self.state.recall("model", self._entries, w)[:, blended]
        weights = np.ones_like(old)
        weights = self.state.recall("weights", self._entries, weights)
        way = w[:, blended] - old
        seeds = mixed(self._seeds(draw), 1)
        relative = getattr(self.model, "unknown_scale", False)
        values = self._zeros(dtype=w.dtype)

        def work(block, slots):
            if not known[slots].any():
                values[slots] = self.model.value(block, w[slots])
                return
            # The layers below stay as they are: the rows pass them once.
            sent = w[slots]
            model, rows, below, rest = self.model.upper_layers(block, sent, trained)
            upper, size = sent[:, below:], model.clients_at_once(rows)
            if below and batch_size is not None:
                size *= max(rows.shape[1] // batch_size, 1)
            for first in range(0, len(slots), size):
                some = slice(first, min(first + size, len(slots)))
                part = rows if size >= len(slots) else rows.take(some)
                values[slots[some]] = learn(model, part, upper[some], below, slots[some])
            values[slots] += rest

        def learn(model, block, x, below, slots):
            u, move, start = weights[slots], way[slots], old[slots]
            mine, x = columns_of(trained[below:]), np.ascontiguousarray(x)
            part = _some_rows(block, share, seeds[slots])
            n_rows = None if batch_size is None else min(batch_size, part.shape[1])
            room = model.workspace(part, n_rows, Guide(trained[below:]))
            most = np.where(begun[slots], 1, MOST_EPOCHS)
            most[~known[slots]] = 0
            losses, unit = [], None
            for t in range(int(most.max())):
                total = 0.0
                for batch, counts in _epoch(part, batch_size, mixed(seeds[slots], t)):
                    x[:, mine] = start + move * u
                    value, g = model.value_gradient(batch, x, room)
                    g = g[:, mine]
                    if relative:  # losses in units of the targets, which are no matter of the rate
                        if unit is None:
                            unit = np.where(value > 0, value, 1.0)
                        value, g = value / unit, g / unit[:, None]
                    moves = (counts > 0) & (t < most)
                    u = np.where(moves[:, None], np.clip(u - rate * g * move, 0.0, 1.0), u)
                    total = total + counts * value
                losses.append(total)
                if t >= SETTLED:
                    calm = np.std(losses[-SETTLED:], axis=0) < tol
                    most = np.where(calm, np.minimum(most, t + 1), most)
            x[:, mine] = start + move * u
            out[slots, below:], weights[slots] = x, u
            return model.value(block, x)

        self._each(work, 2)
        here = np.flatnonzero(known)
        self.state.keep("weights", self._entries[here], weights[here])
        return out, values


def _epoch(block, batch_size, seeds):
    """Batches of an epoch, or all rows, and how much each counts in its client's epoch."""
    if batch_size is None:
        yield block, np.ones(len(seeds))
        return
    batches = Batches(block, batch_size, seeds)
    for k in range(int(batches.per_epoch.max())):
        yield batches.next(), (k < batches.per_epoch) / batches.per_epoch


def _some_rows(block, share, seeds):
    """Block in which a random part of each client's rows have all the weight."""
    n = block.weights.shape[1]
    key = mixed(seeds[:, None], np.arange(n)) / np.float64(2**64)
    key[np.arange(n) >= block.lengths[:, None]] = np.inf
    rank = np.argsort(np.argsort(key, axis=1), axis=1)
    chosen = rank < np.maximum(np.round(share * block.lengths), 1)[:, None]
    weights = block.weights * chosen
    total = weights.sum(axis=1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return block.reweighted(weights)
