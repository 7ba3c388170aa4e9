"""From a trace, model, problem or suite to certified kernels: search, judge, keep."""
