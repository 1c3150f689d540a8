"""The command: `python3 -m bench`, or `make bench`."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):
        sys.exit("bench: Python 3.11 or later is needed")
    from .cli import main

    sys.exit(main())
