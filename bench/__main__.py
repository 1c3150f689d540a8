"""The command: `python3 -m bench`, or `make bench`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
