"""`python -m semel`."""

from semel.cli import main

main()
