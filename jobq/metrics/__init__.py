"""What Prometheus and probes ask a worker, and what the exporter says about queues."""
