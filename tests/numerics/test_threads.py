"""What the server computes on few vectors starts no threads."""

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from skcfl.numerics import kmeans


def test_few_vectors_are_clustered_in_one_thread(monkeypatch):
    seen, means = [], kmeans.KMeans

    class Noted(means):
        def fit(self, *args, **kwargs):
            seen.extend(library["num_threads"] for library in threadpool_info())
            return super().fit(*args, **kwargs)

    monkeypatch.setattr(kmeans, "KMeans", Noted)
    vectors = np.repeat(np.eye(3), 4, axis=0) * 9.0 + np.random.RandomState(0).normal(size=(12, 3))
    with threadpool_limits(2):
        found = kmeans.long_kmeans(vectors, 3, np.random.RandomState(0))
    assert set(seen) == {1}
    wanted = means(3, n_init=10, random_state=np.random.RandomState(0)).fit(vectors)
    assert (found.labels_ == wanted.labels_).all()
