"""Pages of runs and pictures of graphs, each one file that opens in a browser without a network."""
