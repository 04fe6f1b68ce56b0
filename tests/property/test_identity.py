"""Tokens, API keys and rights, for any input: what was changed is refused, and a look-up finds what a search finds."""

from __future__ import annotations

import pytest
from headrace_server.identity.api_keys import make_api_key, parse_api_key
from headrace_server.identity.rights import EVERYTHING, NAMED, Operation, Pattern, ResourceKind, Rights, parse_pattern
from headrace_server.identity.session_tokens import InvalidTokenError, read_session, sign_session
from headrace_server.internal_v1 import metadata_pb2
from hypothesis import assume, given
from hypothesis import strategies as st

SECRETS = {"k1": b"a" * 32, "k2": b"b" * 32}
NUMBERS = st.integers(0, 2**63 - 1)
CLAIMS = st.builds(
    metadata_pb2.SessionClaims,
    user=st.text(max_size=20),
    groups=st.lists(st.text(max_size=5), max_size=3),
    proof=st.integers(0, 4),
    credential=st.text(max_size=12),
    issued_ms=NUMBERS,
    expires_ms=NUMBERS,
)

# --- session tokens ---


@given(CLAIMS, st.sampled_from(sorted(SECRETS)))
def test_a_token_says_what_was_signed(claims, key_id):
    assert read_session(sign_session(claims, key_id, SECRETS[key_id]), SECRETS) == claims


@given(CLAIMS, st.data())
def test_every_flipped_bit_is_refused(claims, data):
    """Of the code, the claims, the key id and the prefix; a session has one token and no second form of it."""
    token = sign_session(claims, "k1", SECRETS["k1"])
    at, bit = data.draw(st.integers(0, len(token) - 1)), data.draw(st.integers(0, 7))
    changed = token[:at] + chr(ord(token[at]) ^ (1 << bit)) + token[at + 1 :]
    with pytest.raises(InvalidTokenError):
        read_session(changed, SECRETS)


def test_every_flipped_bit_of_one_token_is_refused():
    """All of them, for claims whose encoding ends within a character of base64."""
    for size in range(3):
        token = sign_session(metadata_pb2.SessionClaims(user="u" * size), "k1", SECRETS["k1"])
        for at, character in enumerate(token):
            for bit in range(8):
                changed = token[:at] + chr(ord(character) ^ (1 << bit)) + token[at + 1 :]
                with pytest.raises(InvalidTokenError):
                    read_session(changed, SECRETS)


@given(CLAIMS, st.data())
def test_a_token_that_was_cut_or_lengthened_is_refused(claims, data):
    token = sign_session(claims, "k1", SECRETS["k1"])
    with pytest.raises(InvalidTokenError):
        read_session(token[: data.draw(st.integers(0, len(token) - 1))], SECRETS)
    with pytest.raises(InvalidTokenError):
        read_session(token + data.draw(st.text(st.sampled_from("Aa0-_=+/. \n"), min_size=1, max_size=8)), SECRETS)


@given(st.text(max_size=200) | st.text(max_size=200).map("hr1.k1.".__add__))
def test_no_text_is_a_token_by_chance(text):
    with pytest.raises(InvalidTokenError):
        read_session(text, SECRETS)


@given(CLAIMS)
def test_a_key_signs_for_no_other(claims):
    """The key's id is signed, too: the same secret under another id is another key."""
    token = sign_session(claims, "k1", SECRETS["k1"])
    with pytest.raises(InvalidTokenError):
        read_session(token.replace("k1", "k2", 1), {"k2": SECRETS["k1"]})
    with pytest.raises(InvalidTokenError):
        read_session(token, {"k1": SECRETS["k2"]})


# --- API keys ---


@given(st.data())
def test_a_changed_api_key_is_another_or_none(data):
    text = make_api_key()
    parsed = parse_api_key(text)
    assert text == f"hrk_{parsed.key_id}_{text.rpartition('_')[2]}"
    at = data.draw(st.integers(0, len(text) - 1))
    changed = text[:at] + data.draw(st.characters()) + text[at + 1 :]
    assume(changed != text)
    other = parse_api_key(changed)
    assert other is None or other.sha256 != parsed.sha256


@given(st.text(max_size=80) | st.text(max_size=80).map("hrk_".__add__))
def test_text_is_an_api_key_in_its_form_only(text):
    parsed = parse_api_key(text)
    if parsed is not None:
        assert text.isascii()
        assert text.startswith(f"hrk_{parsed.key_id}_")
        assert len(text) >= 4 + 12 + 1 + 43


def test_api_keys_differ():
    assert len({make_api_key() for _ in range(1_000)}) == 1_000


# --- rights ---

NAMES = st.text(st.sampled_from("_ab."), max_size=4)
OPERATIONS = st.integers(1, 255).map(Operation)


@st.composite
def patterns(draw):
    """Patterns as grants have them; the names are few, so that prefixes contain each other."""
    if draw(st.integers(0, 4)) == 0:
        return Pattern((ResourceKind.CLUSTER,))
    is_prefix = draw(st.booleans())
    name = draw(NAMES if is_prefix else NAMES.filter(bool))
    kinds = draw(
        st.sampled_from(
            [(ResourceKind.TOPIC,), (ResourceKind.GROUP,), NAMED]
            if is_prefix
            else [(ResourceKind.TOPIC,), (ResourceKind.GROUP,)]
        )
    )
    return Pattern(kinds, name, is_prefix)


GRANTS = st.lists(st.tuples(patterns(), OPERATIONS), max_size=8)


def search(grants, operation, kind, name):
    """The rule, grant by grant: names that begin with `__` are the cluster's, which alone writes them."""
    cluster = Operation(0)
    for pattern, operations in grants:
        if pattern.kinds == (ResourceKind.CLUSTER,):
            cluster |= operations
    is_internal = kind is ResourceKind.TOPIC and name.startswith("__")
    if is_internal and operation is Operation.WRITE:
        return False
    if cluster & Operation.ADMIN:
        return True
    if kind is ResourceKind.CLUSTER:
        return bool(cluster & operation)
    if cluster & operation and not is_internal:
        return True
    for pattern, operations in grants:
        if kind not in pattern.kinds or not operations & operation:
            continue
        if pattern.is_prefix:
            covers = name.startswith(pattern.name) and (not is_internal or pattern.name.startswith("__"))
        else:
            covers = name == pattern.name
        if covers:
            return True
    return False


@given(
    GRANTS,
    st.sampled_from(list(Operation)),
    st.sampled_from(list(ResourceKind)),
    st.lists(NAMES, min_size=1, max_size=4),
)
def test_a_look_up_finds_what_a_search_finds(grants, operation, kind, names):
    rights = Rights(grants)
    for name in names:
        named = "" if kind is ResourceKind.CLUSTER else name
        assert rights.allow(operation, kind, named) == search(grants, operation, kind, named)


@given(GRANTS, GRANTS, st.sampled_from(list(Operation)), st.sampled_from(list(ResourceKind)), NAMES)
def test_more_grants_never_take_a_right_away(grants, more, operation, kind, name):
    named = "" if kind is ResourceKind.CLUSTER else name
    if Rights(grants).allow(operation, kind, named):
        assert Rights([*grants, *more]).allow(operation, kind, named)


@given(GRANTS, st.sampled_from(list(Operation)), st.sampled_from(NAMED), NAMES, NAMES)
def test_a_right_to_a_prefix_is_one_to_every_name_with_it(grants, operation, kind, prefix, rest):
    """But for the cluster's own topics, which a prefix that is not theirs does not contain."""
    name = prefix + rest
    assume(kind is ResourceKind.GROUP or prefix.startswith("__") or not name.startswith("__"))
    rights = Rights(grants)
    if rights.allow_all(operation, kind, prefix):
        assert rights.allow(operation, kind, name)


@given(patterns())
def test_the_text_of_a_pattern_is_read_as_that_pattern(pattern):
    star = "*" if pattern.is_prefix else ""
    prefix = "" if len(pattern.kinds) > 1 else f"{pattern.kinds[0].value}:"
    text = "cluster" if pattern.kinds == (ResourceKind.CLUSTER,) else f"{prefix}{pattern.name}{star}"
    assert parse_pattern(text) == pattern


def test_an_administrator_may_do_everything_but_write_the_clusters_topics():
    rights = Rights([(Pattern((ResourceKind.CLUSTER,)), Operation.ADMIN)])
    assert all(rights.allow(operation, kind, "clicks") for operation in Operation for kind in ResourceKind)
    assert rights.allow(Operation.READ, ResourceKind.TOPIC, "__audit")
    assert sum(Operation) == EVERYTHING


@pytest.mark.parametrize(
    ("resource", "reaches"),
    [
        ("cluster", False),
        ("*", False),
        ("topic:*", False),
        ("topic:headrace-*", False),
        ("topic:headrace-mirrors", True),
        ("topic:headrace-mirrors*", True),
    ],
)
def test_only_grants_that_name_the_table_of_mirrors_reach_it(resource, reaches):
    """Its rows say to which servers workers send their credentials. Administrators reach it as everything."""
    table = ResourceKind.TOPIC, "headrace-mirrors"
    grant = (parse_pattern(resource), EVERYTHING & ~Operation.ADMIN)
    assert Rights([grant]).allow(Operation.WRITE, *table) == reaches
    assert Rights([(parse_pattern("cluster"), EVERYTHING)]).allow(Operation.WRITE, *table)
