"""``python -m poptorch``."""

import sys

from poptorch.cli import main

if __name__ == "__main__":
    sys.exit(main())
