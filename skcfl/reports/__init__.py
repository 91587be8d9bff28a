"""How sure a fit is: tests of differences from sums over the clients, and reports in words."""
