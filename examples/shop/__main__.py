"""`python -m examples.shop` starts the shop."""

from __future__ import annotations

import argparse
import logging

import uvicorn

from examples.shop.app import create_app
from examples.shop.settings import SERVICES, Settings


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument(
        "--services",
        default=",".join(SERVICES),
        help="whose consumers run in this process (default: %(default)s)",
    )
    options = parser.parse_args()
    services = tuple(filter(None, options.services.split(",")))
    if unknown := set(services) - set(SERVICES):
        parser.error(f"no service {min(unknown)!r}: choose from {', '.join(SERVICES)}")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    print(f"The shop opens at http://{options.host}:{options.port}/")
    uvicorn.run(
        create_app(Settings.from_env(services)),
        host=options.host,
        port=options.port,
        log_level="warning",
    )


if __name__ == "__main__":
    main()
