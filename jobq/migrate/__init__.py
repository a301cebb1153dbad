"""Read code bases that use other queues, and list the changes for moving to jobq. The code is never imported or run."""
