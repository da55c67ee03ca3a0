#!/bin/sh
# Installs Pinyon into .venv, fetches a small model, and answers. stdout carries the answer alone.
# usage: sh packaging/try.sh "prompt" [options of `pinyon run`]
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
. "$root/packaging/common.sh"

if [ $# -eq 0 ] && [ -t 0 ]; then
    say 'usage: sh packaging/try.sh "Why is the sky blue?"'
    exit 2
fi
ensure_installed run
ensure_starter
exec "$venv/bin/pinyon" run -m smollm2 "$@"
