"""Verification of the tokens of issuers: OpenID Connect providers and Kubernetes API servers.

`token_verifier` verifies one token by the keys that `issuer_keys` keeps; `key_fetch` reads and `key_sets` parses them.
"""
