"""Programs that speak to a peer: run in the peers' own environment, without headrace; each a module with `main`."""
