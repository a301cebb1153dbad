"""Reports on the history of jobs, as a table, JSON, CSV or a page. Each report is an SQL query on the view `events`."""
