"""Which kernels stay, by a job's own steps: of a step that is given, and of the first ones of the job."""
