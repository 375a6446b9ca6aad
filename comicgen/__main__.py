"""`python -m comicgen` is the command `comicgen`."""

from comicgen.cli import main

main()
