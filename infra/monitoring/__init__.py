"""Dashboards and alarms as plain data, without CDK."""
