"""Which job starts next, where, and beside whom: proposals that steer the cluster's own scheduler."""
