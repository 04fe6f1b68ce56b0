"""The framing of the transfer port: `FetchRequest` and `FetchResponse` in protobuf, each preceded by its length.

A client connects, sends `PREFACE`, and then one request after the other, each answered before the next one is sent:

    request   uint32 size, FetchRequest
    answer    uint8 kind, uint32 size, body, uint8 verdict

Big-endian. The body of an `ANSWER` is a FetchResponse, whose batches the broker has the kernel send from the page cache
(sendfile, the paper's section 3.1); that of a `REFUSAL` is the ErrorDetail of the whole request. The verdict comes
last because a truncation can remove a range while it is sent: the client discards an answer that is not `WHOLE`. See
docs/protocols/transfer.md.
"""

import struct

PREFACE = b"HRFETCH1"
REQUEST_HEAD = struct.Struct("!I")
ANSWER_HEAD = struct.Struct("!BI")
ANSWER, REFUSAL = 1, 2
DISCARD, WHOLE = b"\x00", b"\x01"
MAX_REQUEST_BYTES = 1 << 20
