"""`python -m nonloc` is `nonloc`."""

import sys

from nonloc.cli import main

if __name__ == "__main__":
    sys.exit(main())
