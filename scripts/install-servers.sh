#!/usr/bin/env bash
# install-servers.sh PYTHON test|full|all|SERVER...: bring the Debian packages that are missing.
# test: MariaDB, PgBouncer, Java for DynamoDB Local, Node.js for Azurite. npm, if one of these two is still to be fetched.
# full: also Chromium, and the compiler and headers that build mysqlclient and the clocks of tests/faults/clocks.py.
# all: also Debian's own PostgreSQL and Redis, the "installed" releases.
# SERVER (mariadb, postgres, redis): only these, also where a SHEDLOCK_TEST_..._URL names one.
# Debian lacks newer servers: tests/support/fetching.py fetches them.
set -euo pipefail
. "$(dirname "$0")/apt.sh"

python=$1
shift
PATH=$PATH:/usr/sbin
missing=()
services=()

has() { command -v "$1" >/dev/null; }
tier() { [[ " $* " == *" $wanted "* ]]; }
server() { # COMMAND-OR-PATTERN PACKAGE SERVICE
    has "$1" || compgen -G "$1" >/dev/null || {
        missing+=("$2")
        services+=("$3")
    }
}
named() { # SERVER
    case $1 in
        mariadb) server mariadb-install-db mariadb-server mariadb ;;
        postgres) has postgres || server '/usr/lib/postgresql/*/bin/postgres' postgresql postgresql ;;
        redis) server redis-server redis-server redis-server ;;
        *) die "unknown server: $1" ;;
    esac
}

case ${1:-} in
    test | full | all)
        wanted=$1
        [ -n "${SHEDLOCK_TEST_MARIADB_URL:-}" ] || named mariadb
        [ -n "${SHEDLOCK_TEST_POSTGRES_URL:-}" ] || server pgbouncer pgbouncer pgbouncer
        has java || missing+=(default-jre-headless)
        has node || missing+=(nodejs)
        has npm || "$python" -c 'import sys; from tests.support.fetching import SOURCES, cached; sys.exit(not all(cached(SOURCES[name]).is_dir() for name in ("dynamodb", "azblob")))' \
            || missing+=(npm)
        if tier full all; then
            has chromium || missing+=(chromium fonts-dejavu-core) # shows the page; the tests drive it with Playwright
            echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1 || missing+=(gcc libc6-dev)
            if ! "$python" -c 'import MySQLdb' 2>/dev/null; then
                has pkg-config || missing+=(pkg-config)
                pkg-config --exists libmariadb 2>/dev/null || pkg-config --exists mysqlclient 2>/dev/null || missing+=(libmariadb-dev)
                "$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' \
                    || missing+=("$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
            fi
        fi
        if tier all; then
            [ -n "${SHEDLOCK_TEST_POSTGRES_URL:-}" ] || named postgres
            [ -n "${SHEDLOCK_TEST_REDIS_URL:-}" ] || named redis
        fi
        ;;
    *) for each in "$@"; do named "$each"; done ;;
esac

[ ${#missing[@]} -gt 0 ] || exit 0
apt_install "${missing[@]}"

# They must not start at the next boot either.
if [ ${#services[@]} -gt 0 ] && [ -d /run/systemd/system ]; then
    as_root systemctl disable --quiet "${services[@]}" || true
fi
