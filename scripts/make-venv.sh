#!/usr/bin/env bash
# make-venv.sh DIR: a virtual environment of a Python >= 3.11.
set -euo pipefail
. "$(dirname "$0")/apt.sh"

dir=$1
new_enough='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if "$candidate" -c "$new_enough" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

if "$dir/bin/python" -c "$new_enough" 2>/dev/null && "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi

python=$(find_python) || die "no Python >= 3.11 found; install one or name it: make PYTHON=/path/to/python3"
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    # Debian keeps ensurepip in a separate package.
    apt_install "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
fi

say "creating $dir with $("$python" --version) ($python)"
rm -rf "$dir"
"$python" -m venv "$dir"
