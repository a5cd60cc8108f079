"""What test modules share: programs, emulators, stand-ins and harness. A test module imports no other test module."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
