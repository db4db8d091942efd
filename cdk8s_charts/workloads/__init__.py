"""The objects of an experiment, a module a purpose."""
