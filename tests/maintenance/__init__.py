"""Tests of what is measured and judged about the tools."""
