"""The command ``ort-stacktune prewarm`` from a checkout: ``python tools/prewarm.py MANIFEST``."""

from __future__ import annotations

import sys

from ort_stacktune.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["prewarm", *sys.argv[1:]]))
