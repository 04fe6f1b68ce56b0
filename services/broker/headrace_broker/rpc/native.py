"""Broker calls over the native protocol: conversion between frames and `BrokerService` and `TableService`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from headrace.v1 import broker_pb2, tables_pb2
from headrace.wire.attachments import splice_produce
from headrace.wire.errors import HeadraceError, Outcome
from headrace.wire.frames import MethodCode
from headrace.wire.zero_copy import SplicedMessage
from headrace_server.methods import METHODS
from headrace_server.native.call import NativeCall, NativeMethod
from headrace_server.native.outgoing import OutgoingMessage, Piece, read_small
from headrace_server.requests import RequestReader

from headrace_broker.rpc.fetch import Located
from headrace_broker.rpc.service import SERVICE_NAME, BrokerService
from headrace_broker.rpc.tables import SERVICE_NAME as TABLE_SERVICE_NAME
from headrace_broker.rpc.tables import TableService


def native_methods(service: BrokerService, tables: TableService) -> dict[int, NativeMethod]:
    """Return the methods of a broker's listener, by number."""

    async def produce(request: SplicedMessage, call: NativeCall) -> OutgoingMessage:
        return OutgoingMessage((await service.produce(request, call.peer())).SerializeToString())

    async def fetch(request: broker_pb2.FetchRequest, _call: NativeCall) -> OutgoingMessage:
        return _fetched(service, await service.locate(request))

    async def list_offsets(request: broker_pb2.ListOffsetsRequest, _call: NativeCall) -> OutgoingMessage:
        return OutgoingMessage((await service.list_offsets(request)).SerializeToString())

    async def get_rows(request: tables_pb2.GetRowsRequest, _call: NativeCall) -> OutgoingMessage:
        ends = ExitStack()
        try:
            response = await tables.get_rows(request, ends.callback)
            return OutgoingMessage(response.SerializeToString(), close=ends.close)
        except BaseException:
            ends.close()
            raise

    async def write_row(request: tables_pb2.WriteRowRequest, _call: NativeCall) -> OutgoingMessage:
        return OutgoingMessage((await tables.write_row(request)).SerializeToString())

    def method(
        name: str, request_type: Any, handle: Any, splice: Any = None, service_name: str = SERVICE_NAME
    ) -> NativeMethod:
        path = f"/{service_name}/{name}"
        row = METHODS[path]
        reader = RequestReader(name, row, request_type.FromString, request_type.DESCRIPTOR)
        return NativeMethod(path, name, row, reader, splice, handle)

    return {
        MethodCode.PRODUCE: method("Produce", broker_pb2.ProduceRequest, produce, splice_produce),
        MethodCode.FETCH: method("Fetch", broker_pb2.FetchRequest, fetch),
        MethodCode.LIST_OFFSETS: method("ListOffsets", broker_pb2.ListOffsetsRequest, list_offsets),
        MethodCode.GET_ROWS: method("GetRows", tables_pb2.GetRowsRequest, get_rows, service_name=TABLE_SERVICE_NAME),
        MethodCode.WRITE_ROW: method(
            "WriteRow", tables_pb2.WriteRowRequest, write_row, service_name=TABLE_SERVICE_NAME
        ),
    }


def _pieces(located: Located) -> list[Piece]:
    """Return the selected parts and the slices of an answer, in the order of its partitions."""
    pieces: list[Piece] = []
    for selected, slices in zip(located.selected, located.slices, strict=True):
        pieces += [*selected, *slices]
    return pieces


def _fetched(service: BrokerService, located: Located) -> OutgoingMessage:
    """Answer by the ranges of files; what is little and in the page cache by its bytes."""
    try:
        message = located.response.SerializeToString()
        slices = [found for of_partition in located.slices for found in of_partition]
        pieces = None if any(located.selected) else read_small(slices)
        if pieces is not None or not slices:
            service.check_lease(Outcome.NOT_APPLIED)
            attached = _pieces(located) if pieces is None else pieces
            located.close()
            return OutgoingMessage(message, attached)
    except BaseException:
        located.close()
        raise

    def is_valid() -> bool:
        """Return whether the sent data is still in the log, and this broker's lease is valid."""
        try:
            service.check_lease(Outcome.NOT_APPLIED)
        except HeadraceError:
            return False
        return not located.was_cut()

    return OutgoingMessage(message, _pieces(located), is_valid, located.close, located.note_failure)
