"""What jobs report: logs, TensorBoard, metrics pages and profiler traces."""
