# Sourced by try.sh, test.sh and .ci/run, which set `root`. POSIX sh. Everything said here goes to stderr.

venv=$root/.venv

say() {
    printf 'pinyon: %s\n' "$*" >&2
}

# find_python: set `python` to an interpreter of 3.11 or newer that can make virtual environments, or say what to install.
find_python() {
    if [ -n "${PYTHON:-}" ]; then
        set -- "$PYTHON"
    else
        set -- python3.13 python3.12 python3.11 python3
    fi
    without_venv=
    for python do
        "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        if "$python" -I -c 'import ensurepip, venv' >/dev/null 2>&1; then
            return 0
        fi
        without_venv=${without_venv:-$python}
    done
    if [ -n "$without_venv" ]; then
        say "$without_venv cannot make virtual environments: its venv module or ensurepip is missing."
    elif [ -n "${PYTHON:-}" ]; then
        say "PYTHON is $PYTHON, which is not Python 3.11 or newer."
    else
        say "Python 3.11 or newer is needed; none of these is one: $*"
    fi
    say 'Install it:  Debian, Ubuntu: apt install python3 python3-venv   Fedora: dnf install python3   macOS: brew install python'
    say 'Or name one: PYTHON=/path/to/python3 sh packaging/...'
    exit 1
}

# ensure_installed run|test: make .venv hold what pyproject.toml asks for. When it does already, this takes 0.05 s.
ensure_installed() {
    if "$venv/bin/python" -I "$root/packaging/install.py" --check "$1" 2>/dev/null; then
        return 0
    fi
    find_python
    "$python" -I "$root/packaging/install.py" "$1" </dev/null >&2 || exit
}

# ensure_starter: fetch the small model that is used where none is named.
ensure_starter() {
    "$venv/bin/python" -I - <<'PYTHON' 2>/dev/null || "$venv/bin/pinyon" pull smollm2 </dev/null >&2 || exit
from pinyon.app.settings import Folders
from pinyon.models.store import Store

store = Store(Folders.of_user().models)
store.ensure_runnable(store.resolve("smollm2"))
PYTHON
}
