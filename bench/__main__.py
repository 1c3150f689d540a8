"""Entry point of `python3 -m bench`."""

import sys

from .cli import main

sys.exit(main())
