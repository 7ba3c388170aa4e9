"""What jobs say of themselves: logs, TensorBoard, metrics pages and profiler traces."""
