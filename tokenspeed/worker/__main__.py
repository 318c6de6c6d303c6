"""`python -m tokenspeed.worker`: ties itself to its parent before anything else.

What `process` imports, torch among it, takes seconds, in which a parent that is killed would leave
an orphan.
"""

import os
import sys

from tokenspeed.worker.parent import die_with_parent

if __name__ == "__main__":
    die_with_parent(os.getppid())

    from tokenspeed.worker.process import main

    sys.exit(main(sys.argv[1:]))
