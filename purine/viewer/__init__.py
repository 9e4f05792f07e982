"""Pictures of graphs and runs that open in a browser, each one file without a network."""
