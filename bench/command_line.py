"""The command lines of this folder's scripts."""

import argparse


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help shows a script's docstring as it is written."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawTextHelpFormatter)
