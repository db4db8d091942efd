"""Tests, in the shape of the tree; a package, so that `tests.lab` never stands in the way of `lab`."""
