"""What runs where rows are: their blocks, local training, what clients draw and keep."""
