"""Graphs of clients: the pairs of clients with compared models."""

from .generators import (
    chain_graph,
    complete_graph,
    distance_graph,
    from_adjacency,
    kl_graph,
    knn_graph,
    star_graph,
    stochastic_block_model,
)
from .graph import Graph

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
