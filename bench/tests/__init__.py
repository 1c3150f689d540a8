"""Tests of the bench that need no server: `make bench-test`."""
