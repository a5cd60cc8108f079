"""`python -m tilec`: the same as `tilec`."""

import sys

from tilec.cli.command import main

if __name__ == "__main__":
    sys.exit(main())
