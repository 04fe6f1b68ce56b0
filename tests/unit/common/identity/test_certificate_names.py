"""Names in a client's certificate: every transport has the same ones, in the same order, and so the same user."""

from types import SimpleNamespace

import pytest
from headrace_server import calls, http_endpoint
from headrace_server.native.framed_connection import _names_of

from tests.unit.common.identity.test_gate import Known

NAME, URI, HOST = "billing", "spiffe://x/billing", "billing.svc"


def names(certificate, of_grpc):
    """Return the names by gRPC, the native protocol and HTTP."""
    native = SimpleNamespace(auth_context=lambda: _names_of(certificate))
    by_http = http_endpoint.certified_names(SimpleNamespace(get_extra_info=lambda _: certificate))
    by_grpc = calls.certified_names(SimpleNamespace(auth_context=lambda: of_grpc))
    return by_grpc, calls.certified_names(native), by_http


def context(common, *others):
    """Return what gRPC reports: an empty common name if there is none, and nothing without a certificate."""
    found = {"x509_common_name": [common.encode()]}
    return found | ({"x509_subject_alternative_name": [name.encode() for name in others]} if others else {})


def certificate(common, *others):
    """Return what `ssl` reports."""
    subject = ((("organizationName", "x"),), *(((("commonName", common),),) if common else ()))
    return {"subject": subject} | ({"subjectAltName": others} if others else {})


@pytest.mark.parametrize(
    ("of_ssl", "of_grpc", "expected", "user"),
    [
        (certificate("", ("URI", URI), ("DNS", HOST)), context("", URI, HOST), ["", URI, HOST], URI),
        (certificate("", ("DNS", "a"), ("DNS", "b")), context("", "a", "b"), ["", "a", "b"], "a"),
        (certificate("", ("DNS", HOST)), {"x509_subject_alternative_name": [HOST.encode()]}, ["", HOST], HOST),
        (certificate(NAME, ("DNS", HOST)), context(NAME, HOST), [NAME, HOST], HOST),
        (certificate(NAME), context(NAME), [NAME], NAME),
        (certificate(""), context(""), [], ""),
        (None, {}, [], ""),
    ],
)
def test_every_transport_has_one_user_for_a_certificate(of_ssl, of_grpc, expected, user):
    """Also for one without a common name, as of SPIFFE: its first alternative name is not taken for that."""
    known = Known()
    for found in names(of_ssl, of_grpc):
        assert found == expected
        caller = known.gate.identification.caller("", found)
        assert caller.identity.user == (f"certificate:{user}" if user else "")


def test_names_that_are_no_text_are_left_out():
    """As gRPC leaves them out; an address is written as there."""
    alternatives = (
        ("DirName", ((("commonName", "x"),),)),
        ("othername", "<unsupported>"),
        ("Registered ID", "1.2.3"),
        ("email", "a@b"),
        ("IP Address", "2001:DB8:0:0:0:0:0:1"),
        ("IP Address", "10.0.0.1"),
        ("IP Address", "<invalid>"),
    )
    expected = ["", "a@b", "2001:db8::1", "10.0.0.1", "<invalid>"]
    assert names(certificate("", *alternatives), context("", *expected[1:])) == (expected,) * 3
