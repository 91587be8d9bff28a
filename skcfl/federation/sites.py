"""Where rows are: what a place that holds clients can be asked."""

from abc import ABC, abstractmethod


class Site(ABC):
    """Clients and their rows, in one place: this process, a worker, an organisation.

    The server's half, :class:`~skcfl.federation.ClientPool`, holds a site and nothing of what is
    in it.  Only what the methods below send and return ever leaves.

    Attributes
    ----------
    n_clients : int
        Number of clients.
    client_sizes, client_weights : ndarray of shape (n_clients,)
        Number of rows of each client, and their total weight.
    without_rows : ndarray of shape (n_clients,) of bool
        Which clients own no row.
    """

    @abstractmethod
    def answer(self, call, arguments):
        """Let the clients compute.

        Parameters
        ----------
        call : str
            A name in :data:`skcfl.federation.messages.CALLS`.
        arguments : dict
            Its arguments.

        Returns
        -------
        answers : dict of str to ndarray
            As the table says.  Where some clients are lost also "answered", ndarray of shape
            (n_clients,) of bool; entries of the others are not looked at.
        """

    @abstractmethod
    def subset(self, clients):
        """Site of some of the clients, by their positions, in that order."""

    @abstractmethod
    def penalised(self, alpha):
        """Site of the same clients under another local penalty."""

    @abstractmethod
    def held_out(self, fraction, seed):
        """Sites of the same clients with two parts of each one's rows: to train on, held out."""

    @abstractmethod
    def folds(self, n_folds, seed):
        """List of (training, held out) sites, every row held out in one of them."""
