"""Reports: rows, tables and small charts made from schedules, timelines and measurements."""
