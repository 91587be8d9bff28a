"""Clients of a pool among the nodes of a graph: the other nodes have no rows, and no client."""

import numpy as np

# Slopes of nodes without rows that are rounding next to the largest one, as at the clients.
ROUNDING = 1e-12


class NodePool:
    """What solvers of fusion problems ask of a pool, of nodes of which some are its clients.

    A node that is no client of the pool has no rows: its objective is zero, nobody is asked, and
    nothing is sent or booked for it.

    Parameters
    ----------
    pool : ClientPool
        The clients.
    places : ndarray of shape (pool.n_clients,)
        Their nodes, ascending.
    n_nodes : int
        Number of nodes.
    """

    def __init__(self, pool, places, n_nodes):
        self.pool, self.places, self.n_clients = pool, np.asarray(places), n_nodes
        self.client_weights = self._of_nodes(pool.client_weights)
        self.client_sizes = self._of_nodes(pool.client_sizes)
        self.without_rows = self._of_nodes(pool.without_rows, True)
        for name in ("n_params", "dtype", "model", "ledger", "random_state"):
            setattr(self, name, getattr(pool, name))
        for name in ("quadratic", "model_name"):
            setattr(self, name, getattr(pool, name))

    def _of_nodes(self, values, other=0):
        """Values of the clients (n_clients, ...) at their nodes, `other` elsewhere."""
        out = np.full((self.n_clients, *values.shape[1:]), other, dtype=values.dtype)
        out[self.places] = values
        return out

    def _of_clients(self, values):
        """Entries of the clients, of one for every node; a number is that of all."""
        return values if values is None or np.ndim(values) == 0 else values[self.places]

    def subset(self, nodes):
        """Some of the nodes, in the given order."""
        nodes = np.arange(self.n_clients)[nodes]
        client = np.full(self.n_clients, -1)
        client[self.places] = np.arange(len(self.places))
        client = client[nodes]
        here = np.flatnonzero(client >= 0)
        pool = self.pool.subset(client[here])
        return pool if len(here) == len(nodes) else NodePool(pool, here, len(nodes))

    # ---------------------------------------------------------------- one answer a node

    def objectives_gradients(self, w, dtype=None, **options):
        """Values and gradients, zero of nodes without rows."""
        w = np.broadcast_to(w, (self.n_clients, self.n_params))
        answers = self.pool.objectives_gradients(w[self.places], dtype, **options)
        return tuple(map(self._of_nodes, answers))

    def solve(self):
        """Minimisers, zero of nodes without rows."""
        w, converged = self.pool.solve()
        return self._of_nodes(w), self._of_nodes(converged, True)

    def prox(self, v, rho, x0=None, **options):
        """Proximal points: nodes without rows stay at the centre."""
        out = np.array(np.broadcast_to(v, (self.n_clients, self.n_params)), dtype=float)
        if len(self.places):
            start = self._of_clients(x0)
            rho = self._of_clients(rho)
            out[self.places] = self.pool.prox(out[self.places], rho, start, **options)
        return out

    def conjugate(self, s, x0=None, allowed=np.inf):
        """Upper bounds of the conjugates; that of a node without rows is finite at zero alone."""
        s = np.broadcast_to(np.asarray(s, dtype=float), (self.n_clients, self.n_params))
        largest = np.abs(s).max(initial=0.0)
        bounds = np.where(np.abs(s).max(axis=1, initial=0.0) <= ROUNDING * largest, 0.0, np.inf)
        if x0 is not None:
            # What rounding leaves of their slopes goes as far as the server's models of them.
            bounds += 2.0 * np.abs(s * x0).sum(axis=1)
        bounds[self.places] = self.pool.conjugate(s[self.places], self._of_clients(x0), allowed)
        return bounds

    def rounding(self, w):
        """Rounding of the objectives, none of nodes without rows."""
        return self._of_nodes(self.pool.rounding(np.asarray(w)[self.places]))

    def spectrum(self):
        """Curvatures, zero of nodes without rows."""
        return tuple(map(self._of_nodes, self.pool.spectrum()))

    def fingerprints(self, key, targets=True):
        """Digests of rows; those of nodes without are nobody's."""
        return self._of_nodes(self.pool.fingerprints(key, targets), np.nan)

    def hessian_solves(self, theta, u, labels, shift, damping=0.0):
        """Solutions of the clients' systems; of other nodes of ``shift x = u``."""
        shift = np.broadcast_to(np.asarray(shift, dtype=float), (len(theta),))
        out = (u / shift[:, None])[labels]
        own = self.pool.hessian_solves(theta, u, labels[self.places], shift, damping)
        out[self.places] = own
        return out

    # ------------------------------------------------------------- sums over clusters

    def shows_rows(self, labels, n_clusters, counted=True):
        """Clusters whose Hessians would show the rows of a client."""
        return self.pool.shows_rows(labels[self.places], n_clusters, self._of_clients(counted))

    def hessians(self, theta, labels, weights=None, damping=0.0):
        """Hessians summed by cluster."""
        weights = self._of_clients(weights)
        return self.pool.hessians(theta, labels[self.places], weights, damping)

    def hessian_products(self, theta, u, labels, weights=None, damping=0.0):
        """Products of the same with vectors."""
        weights = self._of_clients(weights)
        return self.pool.hessian_products(theta, u, labels[self.places], weights, damping)

    def enclosure(self, theta, labels, box, dense):
        """What is certain of the objectives in boxes, nothing to be known of other nodes."""
        rounding, drift, floor = self.pool.enclosure(theta, labels[self.places], box, dense)
        return self._of_nodes(rounding), self._of_nodes(drift), floor

    # ------------------------------------------------------------- known to the server

    def penalties(self, w):
        """Local penalty of models (m, p)."""
        return self.pool.penalties(w)

    def centre(self, theta):
        """Models with the same predictions, their free directions at zero."""
        return self.pool.centre(theta)

    def pin(self, H):
        """Add curvature to the free directions of Hessians, in place."""
        return self.pool.pin(H)

    def relay(self, up=0, down=0):
        """Book what clients send each other."""
        self.pool.relay(up, down)
