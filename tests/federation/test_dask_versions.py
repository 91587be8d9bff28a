"""Workers of a dask cluster with another version of skcfl than the server."""

import numpy as np
import pytest
from cases import DATA
from pickled_hosts import parts_of

from skcfl import FedAvgRegressor
from skcfl.exceptions import FederationError
from skcfl.federation import DaskFederation
from skcfl.federation.serialization import versions

distributed = pytest.importorskip("distributed")


def test_a_worker_with_another_version_is_refused():
    """Before the fit, by its address and both versions; once it is updated it takes part."""

    def become(theirs):  # nested: workers do not find the modules of tests
        from skcfl.federation import dask

        dask.versions = lambda: theirs

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        (address,) = client.nthreads()
        client.run(become, ["0.0.9", "0" * 16])
        with pytest.raises(FederationError) as caught:
            DaskFederation(client, parts_of(DATA, 2))
        text = str(caught.value)
        assert f"{address} has ['0.0.9', '0000000000000000'], the server {versions()}" in text
        client.run(become, versions())
        federation = DaskFederation(client, parts_of(DATA, 2))
        found = FedAvgRegressor(max_iter=3).fit_federation(federation)
        assert np.isfinite(found.params_).all() and found.missing_clients_.size == 0
