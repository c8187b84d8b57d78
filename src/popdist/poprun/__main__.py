"""``python -m popdist.poprun``: the command ``poprun`` where it is not installed."""

import sys

from popdist.poprun.main import main

if __name__ == "__main__":
    sys.exit(main())
