"""What is measured and judged about the tools themselves: `scripts/measure`, `scripts/policy`."""
