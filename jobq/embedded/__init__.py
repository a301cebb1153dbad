"""The private server of a project: a Valkey that jobq starts where no URL is set."""
