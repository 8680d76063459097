"""What is known: model, device, network, cluster, workload, framework, calibration."""
