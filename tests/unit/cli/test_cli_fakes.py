"""The clients that the command line's tests have take no call that the real ones refuse."""

import inspect
from typing import Any

import headrace
import pytest

from tests.unit.cli.conftest import FakeAdmin, FakeConsumer, FakeProducer


@pytest.mark.parametrize(
    ("fake", "real"),
    [(FakeAdmin, headrace.Admin), (FakeConsumer, headrace.Consumer), (FakeProducer, headrace.Producer)],
)
def test_methods_of_a_fake_client_have_the_real_parameters(fake: type, real: type) -> None:
    """By name, kind and order, and all that the real method needs."""
    methods: list[tuple[str, Any]] = inspect.getmembers(fake, inspect.isfunction)
    for name, method in [each for each in methods if not each[0].startswith("_")]:
        own = [each for each in inspect.signature(method).parameters.values() if each.kind is not each.VAR_KEYWORD]
        taken = inspect.signature(getattr(real, name)).parameters
        needed = {each.name for each in taken.values() if each.default is each.empty and each.kind < each.VAR_KEYWORD}
        assert [(each.name, each.kind) for each in own] == [(each.name, taken[each.name].kind) for each in own], name
        in_order = [each.name for each in own if each.kind < each.KEYWORD_ONLY]
        assert in_order == list(taken)[: len(in_order)], name
        assert needed <= {each.name for each in own if each.default is each.empty}, name
