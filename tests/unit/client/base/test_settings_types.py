"""What type checkers and editors know of settings: each one, with its type."""

import dataclasses
import inspect
import typing

import headrace
import headrace.aio
import pytest
from headrace.client.base import config, settings_types
from headrace.client.handlers.handler_pool import RunOptions
from headrace.client.handlers.run_arguments import RunArguments


def fields(dataclass):
    return {field.name for field in dataclasses.fields(dataclass)}


@pytest.mark.parametrize("module", [headrace, headrace.aio])
@pytest.mark.parametrize("name", ["Producer", "Consumer", "Reader", "Admin"])
def test_a_class_names_the_type_of_its_settings(module, name):
    """The keyword arguments are the settings of the class's dataclass, all of them and optional."""
    keywords = inspect.signature(getattr(module, name).__init__).parameters["settings"].annotation
    [settings] = typing.get_args(keywords)
    assert settings is getattr(settings_types, f"{name}Settings") is getattr(headrace, f"{name}Settings")
    assert settings.__optional_keys__ == fields(getattr(config, f"{name}Config"))


@pytest.mark.parametrize("consumer", [headrace.Consumer, headrace.aio.Consumer])
def test_run_names_the_type_of_its_options(consumer):
    assert typing.get_args(inspect.signature(consumer.run).parameters["options"].annotation) == (RunArguments,)
    assert RunArguments.__optional_keys__ == fields(RunOptions)


def test_settings_have_types_and_allowed_values():
    """Words are literals; lists are taken where tuples are kept."""
    known = typing.get_type_hints(settings_types.ProducerSettings)
    assert known["linger_ms"] is int
    assert known["compression_type"] == typing.Literal["none", "gzip", "lz4", "zstd"]
    assert list[str] in typing.get_args(known["bootstrap_servers"])
