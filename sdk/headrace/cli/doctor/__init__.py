"""`headrace doctor`: checks of the cluster and of this host, each with what to do."""
