"""tilec's version: the installed package's, if it is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("tilec")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0+unknown"
