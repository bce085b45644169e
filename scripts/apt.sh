# shellcheck shell=bash
# Sourced: apt_install PACKAGE... installs Debian packages without questions and without starting their services.

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

apt_install() {
    command -v apt-get >/dev/null || die "missing: $*; there is no apt-get here, please install the equivalents by hand"
    [ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null \
        || die "missing: $*; as root: apt-get install --no-install-recommends $*"

    say "installing with apt-get: $*"
    # Debian starts a server as soon as it is installed; the tests bring up private ones instead.
    local policy=/usr/sbin/policy-rc.d log status=0
    log=$(mktemp)
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2064
        trap "as_root rm -f '$policy'" EXIT
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    {
        as_root apt-get -o DPkg::Lock::Timeout=120 -q update &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 -q -y \
                --no-install-recommends install "$@"
    } </dev/null >"$log" 2>&1 || status=$?
    if [ "$status" -ne 0 ]; then
        tail -n 25 "$log" >&2
        die "apt-get could not install: $* (whole log: $log)"
    fi
    rm -f "$log"
}
