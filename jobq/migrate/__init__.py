"""Read code that uses another job queue, and list the changes for moving to jobq. The code is never imported or run."""
