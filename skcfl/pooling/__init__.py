"""Server's half of partial pooling: what all clients' models have in common."""
