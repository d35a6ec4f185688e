#!/bin/sh
# Regenerates the protobuf code beside the .proto files; with --check, fails when it is not current.
set -eu
cd "$(dirname "$0")/../.."
python="${PYTHON:-.venv/bin/python}"
out=.
if [ "${1:-}" = "--check" ]; then out=$(mktemp -d); trap 'rm -rf "$out"' EXIT; fi
"$python" -m grpc_tools.protoc -I . --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" fleet/wire/headrace/v1/*.proto
if [ "${1:-}" = "--check" ]; then
  for f in fleet/wire/headrace/v1/*_pb2*; do
    case "$f" in *_grpc.py) grep -q . "$out/$f" || continue ;; esac
    cmp "$f" "$out/$f" || { echo "generated code is not current: run make wire" >&2; exit 1; }
  done
fi
