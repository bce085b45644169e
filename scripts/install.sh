#!/usr/bin/env bash
# install.sh DIR WHAT ARGUMENT...: make the virtual environment DIR if it is missing, and install into it.
# uv installs, or pip without uv. WHAT is a word for the messages; the arguments go to `pip install`.
set -euo pipefail
. "$(dirname "$0")/apt.sh"

dir=$1 what=$2
shift 2
python=$dir/bin/python
quiet=(--quiet)
[ -t 2 ] && quiet=() # at a terminal, both show their progress

megabytes() { du -sm "$dir" | cut -f1; }
packages() { find "$dir"/lib/python3*/site-packages -maxdepth 1 -name '*.dist-info' | wc -l; }
uv() {
    [ -x "$dir/bin/uv" ] || "$python" -m pip install --quiet --disable-pip-version-check uv 2>/dev/null || return 1
    # Compile once here, so that test processes need not.
    "$dir/bin/uv" pip install --compile-bytecode --python "$python" "${quiet[@]}" "$@"
}
pip() {
    "$python" -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1' # the first with --group
    "$python" -m pip install "${quiet[@]}" --disable-pip-version-check --no-warn-script-location "$@"
}

"$(dirname "$0")/make-venv.sh" "$dir"
say "installing $what into $dir"
began=$SECONDS before=$(megabytes) had=$(packages)
uv "$@" || {
    say "uv cannot install it here; pip takes about a minute"
    pip "$@"
}
say "$what: $(($(packages) - had)) packages, $(($(megabytes) - before)) MB, $((SECONDS - began)) s"
