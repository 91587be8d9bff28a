"""Posteriors of clients whose rows come one lot after the other.

A client's posterior given its old rows is the prior of its new ones.  Under one population and one
cluster that is Bayes' rule, exact for squared error, scales of the clients' own included: with
``df`` degrees of freedom and n rows the scale has ``df + n``.  Of other losses the posterior is
taken to be normal.  Probabilities of clusters are multiplied by the evidence of the new rows.
What is not known of the population is a part of each client's mean, and is carried on with it.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from ..calls.posteriors_asked import Posteriors, PosteriorSums, prior_variance

# Bytes of posteriors that are kept for updates.
MOST_BYTES = 2**26


@dataclass
class KnownPosteriors:
    """Posteriors of clients under each population of a stack and each of its clusters.

    Attributes
    ----------
    means : ndarray of shape (m, n_clients, p)
    covariances : ndarray of shape (m, n_clients, p, p)
        Given a scale of 1.
    noise : ndarray of shape (m, n_clients)
        Dispersions, likewise.
    df : ndarray of shape (m, n_clients)
        Degrees of freedom of the clients' scales.
    errors : ndarray of shape (m, n_clients, p, p)
        Covariances of the means, as the population's means are not known.
    """

    means: np.ndarray
    covariances: np.ndarray
    noise: np.ndarray
    df: np.ndarray
    errors: np.ndarray

    @classmethod
    def of(cls, pool, stack):
        """Posteriors of the clients of a pool, None if they would take too much memory."""
        both = zip(stack.populations, stack.errors, strict=True)
        parts = [
            (population.means[k], None if errors is None else errors[k], population)
            for population, errors in both
            for k in range(stack.populations[0].n_clusters)
        ]
        if 16 * len(parts) * pool.n_clients * pool.n_params**2 > MOST_BYTES:
            return None
        found = [cls._one(pool, *part) for part in parts]
        return cls(*(np.array(each) for each in zip(*found, strict=True)))

    @staticmethod
    def _one(pool, mean, errors, population):
        _, root, _, phi, df = population.arguments
        about = mean[None], root, np.ones(1), phi, df
        _, m, V, noise = pool.ask(Posteriors, *about, None, dense=True)
        F = np.zeros_like(V)
        if errors is not None:
            F = pool.ask(Posteriors, *about, errors[None], dense=True)[2] - V
        df = df + pool.client_weights
        # From expectations to the values at which the scale is 1.
        share = 1.0 / np.array([prior_variance(own) for own in df])
        return m, share[:, None, None] * V, share * noise, df, F

    def joined(self, other, order):
        """These and others' posteriors, the clients in an order."""
        both = (np.concatenate([getattr(self, n), getattr(other, n)], axis=1) for n in vars(self))
        return KnownPosteriors(*(value[:, order] for value in both))

    def updated(self, pool, places, stack, responsibilities):
        """Posteriors after new rows of the clients at some places.

        Parameters
        ----------
        pool : ClientPool
            These clients with their new rows.
        places : ndarray of shape (m,)
            Where they are here.
        stack : Stack
            The populations.
        responsibilities : ndarray of shape (m, K)
            Probabilities of their clusters before.

        Returns
        -------
        posteriors : KnownPosteriors
            Of all clients.
        responsibilities, means : ndarray of shape (m, K) and (m, p)
            Of these clients.
        covariances : ndarray of shape (m, p, p)
            Covariances of their parameters.
        noise : ndarray of shape (m,)
            Their dispersions.
        """
        out = KnownPosteriors(*(value.copy() for value in vars(self).values()))
        r, noise = responsibilities.copy(), np.zeros(len(places))
        means = np.zeros((len(places), pool.n_params))
        covariances = np.zeros((*means.shape, pool.n_params))
        for i, place in enumerate(places):
            client = pool.subset([i])
            evidence = np.zeros(len(self.means))
            for c in range(len(self.means)):
                prior = self._prior(c, place)
                evidence[c] = client.ask(PosteriorSums, *prior)["evidence"]
                _, m, V, phi = client.ask(Posteriors, *prior, None, dense=True)
                df = prior[-1] + client.client_weights[0]
                share = 1.0 / prior_variance(df)
                F = client.ask(Posteriors, *prior, self.errors[c, place][None], dense=True)[2] - V
                out.errors[c, place] = F[0]
                out.means[c, place], out.covariances[c, place] = m[0], share * V[0]
                out.noise[c, place], out.df[c, place] = share * phi[0], df
            if r.shape[1] > 1:
                with np.errstate(divide="ignore"):
                    r[i] = softmax(np.log(r[i]) + evidence)
            weights = r[i] if r.shape[1] > 1 else stack.shares
            factors = np.array([prior_variance(df) for df in out.df[:, place]])
            means[i] = weights @ out.means[:, place]
            noise[i] = weights @ (factors * out.noise[:, place])
            inside = factors[:, None, None] * out.covariances[:, place] + out.errors[:, place]
            away = out.means[:, place] - means[i]
            covariances[i] = np.einsum("c,cpq->pq", weights, inside) + (weights * away.T) @ away
        return out, r, means, covariances, noise

    def _prior(self, c, place):
        values, vectors = np.linalg.eigh(self.covariances[c, place])
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        phi, df = self.noise[c, place], self.df[c, place]
        return self.means[c, place][None], root, np.ones(1), phi, df
