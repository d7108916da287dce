"""Servers that are published as Maven artifacts: resolved once, kept in the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .base import ServiceError

PACKAGES = ("default-jre-headless", "maven")
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>semel</groupId>
  <artifactId>server</artifactId>
  <version>1</version>
  <dependencyManagement>
    <dependencies>
{platform}    </dependencies>
  </dependencyManagement>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""
DEPENDENCY = """\
    <dependency>
      <groupId>{}</groupId>
      <artifactId>{}</artifactId>
      <version>{}</version>
    </dependency>
"""
PLATFORM = DEPENDENCY.replace(
    "</version>\n", "</version>\n      <type>pom</type>\n      <scope>import</scope>\n"
)


def installed() -> bool:
    return shutil.which("java") is not None and shutil.which("mvn") is not None


def class_path(name: str, artifacts: Sequence[str], platform: str | None = None) -> str:
    """The class path of the artifacts and of all that they need at run time.

    The platform is a POM whose table of versions applies, as it did when the server was built.
    """
    pom = POM.format(
        dependencies="".join(DEPENDENCY.format(*each.split(":")) for each in artifacts),
        platform=PLATFORM.format(*platform.split(":")) if platform else "",
    )
    folder = _cached(name, "copy-dependencies", "-DincludeScope=runtime", pom=pom)
    # Sorted: which of two copies of a class is used must not depend on the disk.
    return os.pathsep.join(str(jar) for jar in sorted(folder.glob("*.jar")))


def unpacked(name: str, artifact: str) -> Path:
    """The folder with the content of an artifact that is an archive."""
    return _cached(name, "unpack", f"-Dartifact={artifact}")


def _cached(name: str, goal: str, *options: str, pom: str | None = None) -> Path:
    """What a goal of the dependency plugin makes, once for ever."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semel"
    cache.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256((pom or "".join(options)).encode()).hexdigest()
    folder = cache / f"{name}-{digest[:12]}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _resolve(folder, goal, *options, pom=pom)
    return folder / "lib"


def _resolve(folder: Path, goal: str, *options: str, pom: str | None) -> None:
    draft = folder.with_suffix(".new")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    if pom is not None:
        (draft / "pom.xml").write_text(pom)
    done = subprocess.run(
        ["mvn", "-B", "-q", f"{PLUGIN}:{goal}", *options, f"-DoutputDirectory={draft / 'lib'}"],
        cwd=draft,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise ServiceError(f"mvn could not resolve {folder.name}\n    {(lines or [''])[0]}")
    draft.replace(folder)
