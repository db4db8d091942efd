"""What dashboards and alarms say, as plain data. Pure."""
