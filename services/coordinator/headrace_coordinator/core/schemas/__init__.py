"""Schemas of records: parsing, canonical forms and compatibility of Avro, JSON Schema and Protobuf. Pure.

`formats.parse_schema` imports the module of a format with its first schema, so that a coordinator without schemas loads
none of their libraries.
"""
