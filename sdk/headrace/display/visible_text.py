"""Text of others as text that is safe to show: on a terminal, in a log, in a notebook. Pure."""


def to_line(data: bytes | None) -> str:
    """Return one line that is safe on a terminal; bytes that are not UTF-8 are shown as `\\xNN`."""
    if data is None:
        return "null"
    return visible(data.decode(errors="backslashreplace"))


def visible(text: str, keep: str = "") -> str:
    """Return `text` with every character that is not printable, except those in `keep`, as a backslash escape.

    Text of other clients (client ids, hosts, commit metadata, header names) passes here before it reaches a terminal:
    control and bidirectional characters could move the cursor, hide lines or forge them.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
