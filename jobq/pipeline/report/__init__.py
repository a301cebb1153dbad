"""Reports on the history of jobs: a SQL file each, run over events, shown as table, JSON, CSV or a page."""
