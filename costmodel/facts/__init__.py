"""Known facts: model, device, network, cluster, workload, framework, calibration."""
