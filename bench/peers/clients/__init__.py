"""Programs that speak to a peer: run in the peers' own environment, without headrace; each a module with `main`.

Where no package brings a fast client of a peer, its protocol is spoken on a bare socket: messages are encoded before
the clock starts, and answers are counted and not decoded. A slow client would make its server look slow.
"""
