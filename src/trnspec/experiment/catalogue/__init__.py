"""Facts about models, instances, runtimes and prices, each with its source."""
