"""Client programs of the peers, run in the peers' environment without headrace; each is a module with `main`.

If no package has a fast client of a peer, its protocol is implemented on a bare socket: messages are encoded before the
clock starts, and responses are counted without decoding. A slow client would make its server look slow.
"""
