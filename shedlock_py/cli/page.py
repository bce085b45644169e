"""``shedlock page``: the web page, served or written to a file."""

from __future__ import annotations

import ipaddress
import os
import stat
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import click

from shedlock_py.cli.common import IO_ERROR, fail, open_store, option, printable, store_option
from shedlock_py.cli.listening import listening
from shedlock_py.errors import ConfigurationError
from shedlock_py.provider import LockProvider

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_CONNECTIONS = 64
LONGEST_HEAD = 16_384


@click.command()
@option("--port", envvar="SHEDLOCK_PAGE_PORT", type=click.IntRange(0, 65535), default=8765, show_default=True,
        help="The port. 0 takes a free port.")  # fmt: skip
@option("--host", envvar="SHEDLOCK_PAGE_HOST", default="127.0.0.1", show_default=True, metavar="ADDRESS",
        help="Where to listen. An address that other machines can reach requires a token.")  # fmt: skip
@option("--token", envvar="SHEDLOCK_PAGE_TOKEN", metavar="TEXT",
        help="The password that browsers must give, with any user name. Prefer the variable: other users can see "
        "arguments.")  # fmt: skip
@click.option("--allow-changes", is_flag=True,
              help="Allow to pause, resume, free by force, demote and prune.")  # fmt: skip
@option("--election", "elections", envvar="SHEDLOCK_PAGE_ELECTIONS", multiple=True, metavar="NAME",
        help="The lock name of an election, for the view of leaders. Can be repeated.")  # fmt: skip
@option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
        help="Write one self-contained HTML file instead of serving; - is standard output.")  # fmt: skip
@store_option
def page(
    port: int, host: str, token: str | None, allow_changes: bool, elections: tuple[str, ...], out: Path | None,
    store: str | None,
) -> None:  # fmt: skip
    """Serve a web page of all locks, read-only, for this machine only. Ctrl-C ends it.

    To see runs, switch on run history: ?history=50 in the URL, or SHEDLOCK_HISTORY=50.
    """
    try:
        from shedlock_py.page import page_app
        from shedlock_py.page.report import report
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    with open_store(store) as provider:
        if out is not None:
            _write(out, report(provider, elections))
            return
        is_local = _is_loopback(host)
        if not is_local and not token:
            raise ConfigurationError(
                f"--host {host} is reachable from other machines: set SHEDLOCK_PAGE_TOKEN, which browsers must then "
                f"give as the password"
            )
        hosts = (*LOOPBACK, host) if is_local and not token else ()
        app = page_app(provider, allow_changes=allow_changes, token=token or None, elections=elections, hosts=hosts)
        _serve(app, host, port, provider, "changes are allowed" if allow_changes else "read-only")


def _is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _write(out: Path, html: str) -> None:
    """Write a file whole or not at all. Write directly to standard output, a pipe or a device."""
    if str(out) == "-":
        click.echo(html.encode(), nl=False)
        return
    partial: Path | None = None
    try:
        for part in (out, *out.absolute().parents):
            if _is_link_of_a_stranger(part):
                fail(f"{part} is a link of another user, in a directory that everybody can write to", IO_ERROR)
        mode = out.stat().st_mode if out.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            out.write_text(html, encoding="utf-8")
            return
        target = out.resolve()  # a link stays a link
        with NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            partial = Path(file.name)
            file.write(html)
        # The file that is replaced may be private.
        partial.chmod(stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask())
        partial.replace(target)
        partial = None
    except OSError as error:
        fail(f"{out} cannot be written: {error.strerror}", IO_ERROR)
    finally:
        if partial is not None:
            with suppress(OSError):
                partial.unlink()
    click.echo(printable(str(out)))


def _is_link_of_a_stranger(out: Path) -> bool:
    """Apply the rule of Linux's ``fs.protected_symlinks``: the kernel does not apply it to a rename."""
    if not hasattr(os, "geteuid") or not out.is_symlink():
        return False
    link, directory = out.lstat(), out.parent.stat()
    is_open_to_all = bool(directory.st_mode & stat.S_ISVTX and directory.st_mode & stat.S_IWOTH)
    return is_open_to_all and link.st_uid not in (os.geteuid(), directory.st_uid)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _serve(app: Any, host: str, port: int, provider: LockProvider, what: str) -> None:
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise ConfigurationError("serving the page needs uvicorn: pip install 'shedlock_py[cli,page]'") from error
    shown = f"[{host}]" if ":" in host else host
    with listening(host, port, "--port") as listener, suppress(KeyboardInterrupt):
        click.echo(
            f"http://{shown}:{listener.getsockname()[1]}/ shows {printable(repr(provider))}; {what}; Ctrl-C ends"
        )
        config = uvicorn.Config(
            app, http="h11", lifespan="off", ws="none", access_log=False, log_level="error", server_header=False,
            limit_concurrency=MOST_CONNECTIONS, h11_max_incomplete_event_size=LONGEST_HEAD, timeout_keep_alive=5,
            timeout_graceful_shutdown=5,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listener])
