"""`python -m tokenspeed.appliance.further`: ties itself to its parent before anything else.

What `process` imports takes a moment, in which a parent that is killed would leave an orphan.
"""

import os
import sys

from tokenspeed.worker.parent import die_with_parent

if __name__ == "__main__":
    die_with_parent(os.getppid())

    from tokenspeed.appliance.further.process import main

    sys.exit(main(sys.argv[1:]))
