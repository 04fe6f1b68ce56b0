"""`headrace auth`: log in and out, the identity of the caller, and the posture of the cluster."""
