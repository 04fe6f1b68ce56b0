"""Claims of tokens: which are accepted, and what the refusal tells their owner. The keys are in `test_issuers`."""

from __future__ import annotations

import pytest
from headrace.v1 import auth_pb2
from headrace.wire.errors import UnauthenticatedError
from headrace_coordinator.core.issuer_claims import (
    MAX_TOKEN_CHARACTERS,
    Unverified,
    check_claims,
    find_issuer,
    read_unverified,
)

from tests.unit.coordinator.issuer_parts import AUDIENCE, ISSUER, NOW, claims, encode, token

SSO = auth_pb2.Issuer(name="sso", issuer=ISSUER, audience=AUDIENCE, groups_claim="groups")
NAN, INFINITY = float("nan"), float("inf")


def check(issuer=SSO, used=lambda group: True, **changes):
    return check_claims(claims(**changes), issuer, NOW * 1000, used)


def test_a_good_token_names_its_user_and_when_it_ends():
    found = check(groups=["a", "b"])
    assert (found.user, found.groups, found.expires_ms) == ("sso:ada", ("a", "b"), (NOW + 600) * 1000)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"aud": "other"}, "its claim aud lacks 'headrace'"),
        ({"aud": None}, "its claim aud lacks 'headrace'"),
        ({"aud": ["other", "third"]}, "its claim aud lacks 'headrace'"),
        ({"aud": {"headrace": 1}}, "its claim aud lacks"),
        ({"aud": "headrace2"}, "its claim aud lacks"),
        ({"exp": None}, "has no claim exp"),
        ({"exp": NOW - 61}, r"expired on 2023-11-14 at 22:12:19 UTC, 61 s ago"),
        ({"exp": NOW - 60}, "expired on"),
        ({"exp": NAN}, "exp is no time"),
        ({"exp": INFINITY}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": "9999999999"}, "exp is no time"),
        ({"exp": [NOW + 600]}, "exp is no time"),
        ({"nbf": NOW + 61}, "not valid before 2023-11-14 at 22:14:21 UTC, by its claim nbf, 61 s from now"),
        ({"nbf": NAN}, "nbf is no time"),
        ({"iat": NOW + 61}, "by its claim iat"),
        ({"iss": [ISSUER]}, "iss is not one string"),
        ({"iss": ISSUER + "/"}, "iss is not one string"),
        ({"sub": None}, "claim sub is not a text"),
        ({"sub": ""}, "claim sub is not a text"),
        ({"sub": 7}, "claim sub is not a text"),
        ({"sub": "a\nb"}, "cannot be printed"),
        ({"sub": "\ud800"}, "cannot be printed"),
        ({"sub": "x" * 253}, "too long"),
    ],
)
def test_what_is_refused_and_why(changes, reason):
    with pytest.raises(UnauthenticatedError, match=reason):
        check(**changes)


@pytest.mark.parametrize(
    "changes", [{"exp": NOW - 59}, {"nbf": NOW + 60}, {"iat": NOW + 60}, {"nbf": None, "iat": None}, {"exp": 10**300}]
)
def test_clocks_may_differ_by_a_minute(changes):
    check(**changes)


def test_a_list_of_audiences_must_contain_the_clusters():
    check(aud=["other", AUDIENCE])


def test_another_claim_may_name_the_user():
    """A Kubernetes service account is named by `sub`, a person perhaps by its address."""
    issuer = auth_pb2.Issuer(name="sso", issuer=ISSUER, audience=AUDIENCE, user_claim="email")
    assert check(issuer, email="ada@example").user == "sso:ada@example"
    assert check(sub="system:serviceaccount:ns:app").user == "sso:system:serviceaccount:ns:app"


def test_only_groups_that_some_grant_names_count():
    """A token may list hundreds; those without a grant give no right, and the session token has little room."""
    used = {"a", "b"}.__contains__
    listed = ["x" * 1_000] * 500 + ["b", 7, None, ["a"], "a", "b"]
    assert check(used=used, groups=listed).groups == ("b", "a")
    assert check(used=used, groups="a").groups == ("a",)
    assert check(used=used, groups={"a": 1}).groups == ()
    assert check(used=used).groups == ()
    assert check(auth_pb2.Issuer(name="sso", issuer=ISSUER, audience=AUDIENCE), groups=["a"]).groups == ()


@pytest.mark.parametrize("groups", [[str(number) for number in range(65)], ["x" * 1_000, "y" * 1_000, "z"]])
def test_too_many_groups_are_refused_and_not_cut_off(groups):
    """Which of them would be left out would be left to chance."""
    with pytest.raises(UnauthenticatedError, match="groups that have grants"):
        check(groups=groups)
    assert len(check(groups=groups[:-1]).groups) == len(groups) - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a.b",
        "a.b.c.d",
        "....",
        encode({"alg": "ES256"}) + ".e30.",
        "e30." + encode({"iss": ISSUER}) + ".x",
        "[]." + encode({"iss": ISSUER}) + ".x",
        encode([1]) + "." + encode({"iss": ISSUER}) + ".x",
        encode({"alg": ["ES256"]}) + "." + encode({"iss": ISSUER}) + ".x",
        encode({"alg": "ES256", "kid": 7}) + "." + encode({"iss": ISSUER}) + ".x",
        encode({"alg": "ES256"}) + "." + encode({"iss": [ISSUER]}) + ".x",
        encode({"alg": "ES256"}) + "." + encode({"iss": None}) + ".x",
        encode({"alg": "ES256"}) + "." + encode(b"[" * 10_000) + ".x",
        encode({"alg": "ES256"}) + "." + encode(b"9" * 10_000) + ".x",
        encode({"alg": "ES256"}) + "." + encode(b"\xff\xfe") + ".x",
        "é.é.é",
        "\x00" * 100,
        "hr1.abc.def",
        "hrk_" + "a" * 12 + "_" + "b" * 43,
    ],
)
def test_what_is_no_token(text):
    with pytest.raises(UnauthenticatedError):
        read_unverified(text)


@pytest.mark.parametrize("size", [MAX_TOKEN_CHARACTERS + 1, 1 << 20])
def test_a_large_token_is_refused_before_anything_is_parsed(size, monkeypatch):
    def parse(*_):
        raise AssertionError("it was parsed")

    monkeypatch.setattr("headrace_coordinator.core.issuer_claims._read_part", parse)
    with pytest.raises(UnauthenticatedError, match=f"the token has {size} characters"):
        read_unverified(token()[:-1].ljust(size, "A"))


def test_the_issuer_must_be_accepted_with_the_algorithm():
    """Exactly: no prefix, no other case; and by an algorithm of the issuer's list only."""
    only = auth_pb2.Issuer(name="only", issuer="https://x", algorithms=["RS256"])
    assert find_issuer([only, SSO], Unverified(ISSUER, "EdDSA", None)) is SSO
    for issuer in (ISSUER + "/", ISSUER.upper(), "", "https://login.example.evil"):
        with pytest.raises(UnauthenticatedError, match="is not accepted here"):
            find_issuer([only, SSO], Unverified(issuer, "ES256", None))
    for algorithm in ("none", "None", "HS256", "RS384", "ES256 ", "", "A" * 5_000):
        with pytest.raises(UnauthenticatedError, match="accepts RS256, ES256, EdDSA") as failure:
            find_issuer([SSO], Unverified(ISSUER, algorithm, None))
        assert len(str(failure.value)) < 300
    with pytest.raises(UnauthenticatedError, match=r"accepts RS256\. Get"):
        find_issuer([only], Unverified("https://x", "ES256", None))


def test_no_reason_contains_the_token():
    """Nor its signature or any part of it."""
    text = token(exp=NOW - 1_000)
    found = []
    for broken in (text + "x" * MAX_TOKEN_CHARACTERS, text.replace(".", "!"), text[5:]):
        with pytest.raises(UnauthenticatedError) as failure:
            read_unverified(broken)
        found.append(str(failure.value))
    with pytest.raises(UnauthenticatedError) as failure:
        check(exp=NOW - 1_000)
    found.append(str(failure.value))
    for part in text.split("."):
        assert not [reason for reason in found if part[:12] in reason]
