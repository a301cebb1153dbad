"""Reports on the history of jobs: one SQL file each over the view `events`, shown as table, JSON, CSV or a page."""
