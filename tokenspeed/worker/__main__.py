"""`python -m tokenspeed.worker`: ties itself to its parent before anything else.

What `process` imports, torch among it, takes seconds, in which a parent that is killed would leave
an orphan. With `--told` alone, a line on standard input says the rest, perhaps only when all is
imported.
"""

import gc
import json
import os
import sys
import time

from tokenspeed.stages import process_age
from tokenspeed.worker.parent import die_with_parent

if __name__ == "__main__":
    die_with_parent(os.getppid())

    # The collector would go through what torch makes time and again, for a seventh of the imports'
    # time. None of that is ever garbage, so no later round looks at it either.
    gc.disable()
    from tokenspeed.worker.process import main

    gc.freeze()
    gc.enable()
    if sys.argv[1:] != ["--told"]:
        sys.exit(main(sys.argv[1:], time.monotonic() - process_age()))
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)  # there is nothing to run
    told = json.loads(line)
    sys.exit(main(told["arguments"], told["asked"]))
