"""`python -m tokenspeed`."""

import sys

from tokenspeed.cli import main

if __name__ == "__main__":
    sys.exit(main())
