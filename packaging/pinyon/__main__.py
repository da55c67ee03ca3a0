"""`python -m pinyon` is the command line."""

from pinyon.app.cli.main import main

main()
