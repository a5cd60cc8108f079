"""The version, in one place: the package's own if it is installed."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("tilec")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0+unknown"
