"""The code that runs where rows are: blocks, local training, random draws, kept state."""
