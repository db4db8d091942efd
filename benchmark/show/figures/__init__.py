"""The report's figures: matplotlib draws, the page colours. Everything here needs matplotlib."""
