"""`python -m tokenspeed` is the command `tokenspeed`."""

import sys

from tokenspeed.cli import main

if __name__ == "__main__":
    sys.exit(main())
