"""The commands of `scripts/services`."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from . import apt, docker, tools
from .base import Server, ServiceError
from .kafka import Kafka
from .mariadb import MariaDB
from .nats import Nats
from .postgres import Postgres
from .pulsar import Pulsar
from .rabbitmq import RabbitMQ
from .redis import Redis
from .registry import Registry

REPOSITORY = Path(__file__).resolve().parents[2]
DATABASES: tuple[type[Server], ...] = (Postgres, MariaDB)
BROKERS: tuple[type[Server], ...] = (Redis, Nats, RabbitMQ, Kafka, Pulsar)
KINDS = {kind.name: kind for kind in (*DATABASES, *BROKERS, Registry)}
GROUPS = {
    "databases": [kind.name for kind in DATABASES],
    "brokers": [kind.name for kind in BROKERS],
    "all": [*KINDS, *tools.TOOLS],
}
HELP = f"""\
servers: {" ".join(KINDS)}
tools:   {" ".join(tools.TOOLS)} (up installs them)
groups:  databases brokers all (the default)

A server named by its SEMEL_TEST_<NAME>_URL is used as it is. Else it runs from compose.yaml where
a Docker engine answers, else natively (installed with apt by root on Debian), on 127.0.0.1.
Data and logs are in $SEMEL_SERVICES_DIR, or in .services of the repository.

    eval "$(scripts/services env)"
"""


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        return run(arguments)
    except OSError as error:
        say(f"scripts/services: {error}")
        return 1


def run(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/services",
        description="Start and stop the servers that the tests use.",
        epilog=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command, text in {
        "up": "start servers and wait until they answer",
        "start": "the same as up",
        "down": "stop what up started; the data stays",
        "kill": "SIGKILL servers that up started",
        "status": "a table of the servers",
        "env": "print export lines of the servers that are up",
    }.items():
        sub = commands.add_parser(command, help=text, description=text)
        sub.add_argument(
            "names", nargs="+" if command in ("kill", "start") else "*", metavar="NAME"
        )
        if command == "status":
            sub.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    known = {**KINDS, **GROUPS, **tools.TOOLS}
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no server is called {unknown[0]!r}: choose from {' '.join(KINDS)}")
    names = {each for name in options.names or ["all"] for each in GROUPS.get(name, [name])}
    root = services_folder()

    def servers() -> list[Server]:
        return [kind(root) for kind in KINDS.values() if kind.name in names]

    match options.command:
        case "status":
            return status(servers(), as_json=options.json)
        case "env":
            return env(servers())
    with locked(root):
        match options.command:
            case "down":
                return each(down, servers())
            case "kill":
                return each(kill, servers())
            case _:
                problems = tools.install(names, root)
                for line in problems:
                    say(line)
                return up(servers(), root) or int(bool(problems))


def services_folder() -> Path:
    if chosen := os.environ.get("SEMEL_SERVICES_DIR"):
        return Path(chosen).resolve()
    if os.geteuid() == 0 and any(not p.stat().st_mode & 0o001 for p in REPOSITORY.parents):
        # The servers' own users could not reach a folder inside, say, root's home.
        digest = hashlib.sha256(bytes(REPOSITORY)).hexdigest()[:12]
        folder = Path("/var/tmp") / f"semel-services-{digest}"
        folder.mkdir(exist_ok=True)
        if folder.stat().st_uid != 0:
            raise PermissionError(f"{folder} belongs to somebody else")
        return folder
    return REPOSITORY / ".services"


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """One command at a time changes the servers; the next one sees what it left."""
    root.mkdir(parents=True, exist_ok=True)
    if not (root / ".gitignore").exists():
        (root / ".gitignore").write_text("*\n")
    with (root / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another scripts/services")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    # In one write: threads and other programs share the terminal.
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def report(server: Server, what: str, since: float) -> None:
    say(f"{server.name:<9} {what:<8} {time.monotonic() - since:6.2f} s  {redacted(server.url)}")


def redacted(url: str) -> str:
    password = urlsplit(url).password
    return url.replace(f":{password}@", ":***@") if password else url


def each(action: Callable[[Server], None], servers: Sequence[Server]) -> int:
    """Act on all servers at once; the exit status is 1 when one failed."""

    def attempt(server: Server) -> bool:
        try:
            action(server)
        except (ServiceError, OSError) as error:
            say(f"{server.name:<9} FAILED   {error}")
            return False
        return True

    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        return 0 if all(list(pool.map(attempt, servers))) else 1


def how(server: Server) -> str:
    """env, docker or native: in which way the server is used, or would be started."""
    if os.environ.get(server.variable()):
        return "env"
    if server.state.how == "native":
        return "native"
    return "docker" if docker.available() else "native"


def up(servers: Sequence[Server], root: Path) -> int:
    waiting = [s for s in servers if how(s) == "native" and not s.running()]
    refused = install([s for s in waiting if not s.installed()], root)
    contained = [s for s in servers if how(s) == "docker"]
    if contained:
        since = time.monotonic()
        try:
            docker.compose("up", "--detach", *(s.name for s in contained))
        except ServiceError as error:
            say(f"docker    FAILED   {error}")
            refused |= {s.name for s in contained}
        else:
            for server in contained:
                server.save(how="docker")
            say(f"docker    started  {time.monotonic() - since:6.2f} s")
    failed = each(start, [s for s in servers if s.name not in refused])
    return 1 if refused else failed


def install(servers: Sequence[Server], root: Path) -> set[str]:
    """Install what these need, in one go if possible. Returns the names of those that lack it."""
    if not servers:
        return set()
    if not apt.possible():
        for server in servers:
            say(
                f"{server.name:<9} MISSING  set {server.variable()}, start a Docker engine, or "
                f"install {' '.join(server.packages)} (as root on Debian this is done for you)"
            )
        return {server.name for server in servers}
    since = time.monotonic()
    packages = sorted({package for server in servers for package in server.packages})
    try:
        apt.install(packages, root / "apt.log")
    except ServiceError as error:
        if len(servers) > 1:
            return {name for server in servers for name in install([server], root)}
        say(f"{servers[0].name:<9} MISSING  {error}")
        return {servers[0].name}
    say(f"apt       done     {time.monotonic() - since:6.2f} s  {' '.join(packages)}")
    return set()


def start(server: Server) -> None:
    since = time.monotonic()
    if how(server) == "env":
        if not server.answers(given=True):
            raise ServiceError(f"{redacted(server.url)} of {server.variable()} does not answer")
        report(server, "given", since)
    elif how(server) == "native" and not server.running():
        server.start()
        report(server, "started", since)
    else:
        server.await_ready()
        report(server, "up", since)


def down(server: Server) -> None:
    since = time.monotonic()
    if os.environ.get(server.variable()) or not server.state.how:
        return
    clean = True
    if server.state.how == "docker":
        if docker.available():
            docker.compose("stop", server.name)
        server.save(how="")
    else:
        clean = server.stop()
    report(server, "stopped" if clean else "killed", since)


def kill(server: Server) -> None:
    since = time.monotonic()
    if how(server) == "docker" and server.state.how:
        docker.compose("kill", "--signal", "SIGKILL", server.name)
    elif how(server) == "native" and server.running():
        server.kill()
    else:
        raise ServiceError("was not started by scripts/services up")
    report(server, "killed", since)


def status(servers: Sequence[Server], *, as_json: bool) -> int:
    with ThreadPoolExecutor(max(1, len(servers))) as pool:
        ups = list(pool.map(is_up, servers))
    if as_json:
        rows = [
            {
                "name": server.name,
                "how": how(server),
                "variable": server.variable(),
                "url": server.url,
                "up": is_it,
                "pid": server.state.pid if how(server) == "native" and server.running() else None,
                "ports": server.state.ports if how(server) == "native" else {},
                "log": str(server.log) if how(server) == "native" else None,
            }
            for server, is_it in zip(servers, ups, strict=True)
        ]
        print(json.dumps(rows, indent=2))
        return 0
    for server, is_it in zip(servers, ups, strict=True):
        word = "up" if is_it else "down"
        print(f"{server.name:<9} {how(server):<7} {word:<5} {redacted(server.url)}")
    return 0


def is_up(server: Server) -> bool:
    """Whether it is ours or given, and answers; a stranger on our port does not count."""
    ours = server.running() or server.state.how == "docker" or how(server) == "env"
    return ours and server.answers(given=how(server) == "env")


def env(servers: Sequence[Server]) -> int:
    for server in servers:
        if how(server) == "env" or is_up(server):
            print(f"export {server.variable()}={shlex.quote(server.url)}")
    return 0
