#!/bin/sh
# Installs Pinyon and its test tools into .venv and runs the tests, two at a time: most of them wait for something.
# usage: sh packaging/test.sh [options of pytest]
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/packaging/common.sh"

ensure_installed test
cd -- "$root"
exec "$venv/bin/pytest" -n 2 --dist worksteal "$@"
