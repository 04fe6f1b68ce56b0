"""`headrace issuer`: issuers of JSON Web Tokens that the cluster accepts."""
