"""A Kubernetes API server for tests, in one process and without kubelets.

It stands in for a kube-apiserver with its controller-manager (v1.36) where none can be run. Each behaviour cites
Kubernetes' documentation or an answer that was recorded from a real server; whatever is not implemented answers
501, so a test can never pass on a guess. The same tests run unchanged against a real cluster when
`NIGHTSHIFT_TEST_KUBECONFIG` names one: a throw-away cluster (kind, kwok) with administrator's rights, since
nodes and cluster roles are made and removed. A cloud's controller would remove nodes that it has no machine for.
"""
