"""Entry point of `python3 -m bench`."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 11):
        sys.exit("bench: Python 3.11 or later is required")
    from .cli import main

    sys.exit(main())
