"""``python -m popdist.vipu``: the command ``vipu`` where it is not installed."""

import sys

from popdist.vipu.command import main

if __name__ == "__main__":
    sys.exit(main())
