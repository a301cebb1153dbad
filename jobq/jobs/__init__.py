"""Jobs: functions that a worker runs. Calls become bytes here, and a message one outcome."""
