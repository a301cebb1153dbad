"""Reports on the history of jobs, shown as a table, JSON, CSV or a page. Each is an SQL file over the view `events`."""
