"""Tests of the lab: what it emulates, and how honestly it says so."""
