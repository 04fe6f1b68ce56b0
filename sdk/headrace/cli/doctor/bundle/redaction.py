"""Removal of secrets, and of bytes of records, from what goes into a bundle. Pure: text in, text out.

What the bundle collects has no secrets by design. This is the second wall: log files may be of other programs or
releases, and error messages may quote what a user has typed.
"""

import json
import re
from collections.abc import Mapping, Sequence

from headrace.cli.common.rendering import JsonValue

LEFT_OUT = "[left out]"
CUT = " [cut]"
MAX_LINE = 16_384
"""Characters of a line of a log; the rest is cut."""

_HARMLESS_END = r"(?:file|files|id|ids|count|ms|epoch|seconds|bytes)"
_SECRET_WORD = (
    r"(?:password|passwd|passphrase|pwd|secret|signature|token|(?:api|access|private)[_-]?key|credential|"
    r"authorization|cookie)"
)
_PART = r"[\w.-]{0,40}"  # With a bound, as others here, so that no text takes long.
_SECRET_NAME = (
    rf"(?!{_PART}[_-]{_HARMLESS_END}(?![\w.-]))(?:{_PART}{_SECRET_WORD}{_PART}|(?:{_PART}[_.-])?pass(?![\w.-]))"
)
"""A field whose name says so has a secret, but for the path of its file, its id and figures about it."""
_DATA_NAME = r"(?:(?:row|table|record|message|partition)_)?(?:keys?|values?|headers?)|rows?|records?|payload|body"
_BEGIN, _END = "-----BEGIN [A-Z ]*PRIVATE KEY-----", "-----END [A-Z ]*PRIVATE KEY-----"
_FEW = "{0,512}+"
"""As many as there are, and no fewer: nothing is tried again."""
_TEXTS = (
    re.compile(rf"\A(?:(?!{_BEGIN}).)*?{_END}", re.DOTALL),
    re.compile(rf"{_BEGIN}.*?(?:{_END}|\Z)", re.DOTALL),
    re.compile(r"hrk_[A-Za-z0-9_-]{8,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{1,2048}\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)?"),
    re.compile(
        rf"""(?<=://)(?:[^/\s:"@]{_FEW}:[^\s"@]{_FEW}(?:@[^\s"@]{_FEW})*|[^/\s"@]{_FEW}(?:@[^/\s"@]{_FEW})*)(?=@)"""
    ),
    re.compile(r"""(?<![\w"'])b'(?:[^'\\\n]|\\.)*'?|(?<![\w"'])b"(?:[^"\\\n]|\\.)*"?"""),
)
"""Private keys, also of which a log was cut, API keys, tokens (JWT), users and passwords in URLs, and the bytes that
Python prints, as in a traceback."""
_BEARER = re.compile(r"\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]+", re.IGNORECASE)
_QUOTED = r""""(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?"""
_STRUCTURE = rf"{_QUOTED}|{re.escape(LEFT_OUT)}\S*|\[\]|\(\)|\{{\}}|[\w.]{{0,40}}[\[({{][^\n]*"
"""Text in quotes; a list or the like to the end of the line, as it may contain its own end, unless it is empty."""
_FIELD = re.compile(
    rf"""((?<![\w.-])["']?(?:{_DATA_NAME}|{_SECRET_NAME})(?:\\?["'])?)"""
    rf"""(?:([=:])(?:{_STRUCTURE}|\S+)"""
    rf"""|([ \t]{{0,8}}(?::|=>?|->)[ \t]{{0,8}})(?:{_STRUCTURE}|-?\d+(?:\.\d+)?(?=[,)}}\]])|[^\n]+))""",
    re.IGNORECASE,
)
"""A value is a word, as in the format console; behind a separator with blanks it is the rest of the line."""
_HEADER = re.compile(
    rf"""((?<![\w.-])["']?{_PART}(?:authorization|cookie){_PART}(?:\\?["'])?[ \t]?[=:][ \t]?)(?:{_QUOTED}|[^\n]+)""",
    re.IGNORECASE,
)
"""Headers of HTTP whose values have names and blanks of their own."""
_OPTION = re.compile(
    rf"""((?<![\w-])--{_SECRET_NAME}["']?,?[ \t]{{1,8}})(?:{_QUOTED}|\S+)""",
    re.IGNORECASE,
)
"""Options of command lines."""
_SECRET_FIELD = re.compile(_SECRET_NAME, re.IGNORECASE)
_LOG_FIELD = re.compile(rf"{_DATA_NAME}|{_SECRET_NAME}", re.IGNORECASE)
_CONSUMERS_TEXT = "metadata"
"""Field of a committed offset: any text of the consumer."""


def redact_text(text: str) -> str:
    """Return a text, such as an error message, without what looks like a secret or like bytes of a record."""
    for form in _TEXTS:
        text = form.sub(LEFT_OUT, text)
    return _BEARER.sub(rf"\1{LEFT_OUT}", text)


def redact_log(text: str) -> str:
    """Return lines of a log, in the format console or json, also without the fields that may have secrets or data."""
    return "".join(_redact_line(line) + "\n" for line in redact_text(text).split("\n")).removesuffix("\n")


def redact_document(value: JsonValue, name: str = "") -> JsonValue:
    """Return a document of a command with secrets left out; `name` is the field that has it.

    Documents have no keys, values or headers of records.
    """
    match value:
        case None | bool() | int() | float():
            return value
        case _ if value and (_SECRET_FIELD.fullmatch(name) or (name == _CONSUMERS_TEXT and isinstance(value, str))):
            return LEFT_OUT
        case str():
            return redact_text(value)
        case Mapping():
            return {redact_text(each): redact_document(inner, each) for each, inner in value.items()}
        case Sequence():
            return [redact_document(inner, name) for inner in value]


def _redact_line(line: str) -> str:
    if len(line) > MAX_LINE:
        return _redact_fields(line[:MAX_LINE]) + CUT
    if line.startswith("{"):
        try:
            return json.dumps(_redact_event(json.loads(line)), ensure_ascii=False)
        except ValueError:
            pass  # It is cut, or of another format.
    return _redact_fields(line)


def _redact_event(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return _redact_fields(redact_text(value))
        case Mapping():
            return {
                name: LEFT_OUT if _LOG_FIELD.fullmatch(name) else _redact_event(inner) for name, inner in value.items()
            }
        case Sequence():
            return [_redact_event(inner) for inner in value]
        case _:
            return value


def _redact_fields(text: str) -> str:
    text = _OPTION.sub(rf"\1{LEFT_OUT}", _HEADER.sub(rf"\1{LEFT_OUT}", text))
    return _FIELD.sub(rf"\1\2\3{LEFT_OUT}", text)
