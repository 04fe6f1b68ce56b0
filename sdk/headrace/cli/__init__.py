"""The `headrace` command (extra `cli`).

`main` is the entry point. The pure parts (offset grammar, format strings, record JSON, rendering, exit codes) import
neither grpc nor numpy; the commands import the SDK inside their bodies, so that `headrace --help` is fast. A
command's function may be longer than others because it declares the options.
"""
