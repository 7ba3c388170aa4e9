"""Which job starts next, where, and beside which other job: proposals that steer the cluster's own scheduler."""
