"""The `headrace` command (extra `cli`).

`main` is the entry point. The pure parts (offset grammar, format strings, record JSON, rendering, exit codes) import
neither grpc nor numpy; the commands import the SDK inside their bodies, so that `headrace --help` is quick. A
command's function declares its options, and may be longer than others for that.
"""
