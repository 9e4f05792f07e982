"""How values go from one host to another: one interface, one file for each engine."""
