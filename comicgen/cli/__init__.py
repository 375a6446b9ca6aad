"""The command line: parse, call, print. People are spoken to on stderr, programs on stdout."""

from comicgen.cli.main import main

__all__ = ["main"]
