"""Graphs of clients: whose models are compared with whose."""

from .graph import (
    Graph,
    chain_graph,
    complete_graph,
    distance_graph,
    from_adjacency,
    kl_graph,
    knn_graph,
    star_graph,
    stochastic_block_model,
)

__all__ = [
    "Graph",
    "chain_graph",
    "complete_graph",
    "distance_graph",
    "from_adjacency",
    "kl_graph",
    "knn_graph",
    "star_graph",
    "stochastic_block_model",
]
