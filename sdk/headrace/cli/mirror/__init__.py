"""`headrace mirror`: copies of topics of another cluster."""
