"""Locks as Leases of Kubernetes, the objects that its own leader elections use."""

from shedlock_py.providers.kubernetes.kubernetes_provider import AsyncKubernetesLockProvider, KubernetesLockProvider

__all__ = ["AsyncKubernetesLockProvider", "KubernetesLockProvider"]
