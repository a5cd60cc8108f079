"""`python -m fuzz`. What other processes run is elsewhere: they do not import a package's `__main__`."""

from __future__ import annotations

import sys

from fuzz.driver import main

if __name__ == "__main__":
    sys.exit(main())
