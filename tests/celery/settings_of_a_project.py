"""Settings of an app, as a module has them."""

task_default_queue = "from-module"
