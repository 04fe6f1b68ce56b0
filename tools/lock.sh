#!/usr/bin/env bash
# Writes the four lock files: versions and hashes for all platforms, and nothing about where they were found.
# `make lock` keeps the versions that still fit; `make lock UPGRADE=1` takes the newest.
set -euo pipefail
cd "$(dirname "$0")/.."

members=(sdk services services/devcluster spark_jobs)
distributions=(headrace headrace-server headrace-devcluster headrace-spark-jobs headrace-workspace)
options=(--quiet --universal --python-version 3.11 --generate-hashes --no-annotate --custom-compile-command "make lock")
[[ -z "${UPGRADE:-}" ]] || options+=(--upgrade)

# The lock speaks of PyPI's packages only, whatever index or folder of wheels this machine is set up with.
unset UV_FIND_LINKS PIP_FIND_LINKS

compile() { .venv/bin/uv pip compile "${options[@]}" "$@" > /dev/null; }

compile --group pyproject.toml:bootstrap --output-file requirements-bootstrap.lock
compile --group pyproject.toml:proto --output-file requirements-proto.lock
compile "${members[@]/%//pyproject.toml}" --extra arrow --extra avro --extra cli --extra delta --extra iceberg --extra java --extra json-schema --extra load --extra lz4 --extra metrics \
  --extra spark --extra sql --extra tracing --extra workload --extra zstd --group pyproject.toml:dev "${distributions[@]/#/--no-emit-package=}" --output-file requirements.lock
# What the image has of it: the services and the command line, in the versions that were tested.
compile {sdk,services}/pyproject.toml --extra cli --extra lz4 --extra tracing --extra zstd \
  --constraint requirements.lock "${distributions[@]/#/--no-emit-package=}" --output-file requirements-image.lock

if grep -nE 'https?://|file:|/(home|root|tmp|work)/' requirements*.lock; then
  echo "a lock file names a host or a path of this machine" >&2
  exit 1
fi

# Each locked package has a wheel for every platform and Python, as far as the index says: minutes.
.venv/bin/python tools/wheels.py
