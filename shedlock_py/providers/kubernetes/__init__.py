"""Locks as Kubernetes Leases, the objects of Kubernetes' own leader elections."""

from shedlock_py.providers.kubernetes.kubernetes_provider import AsyncKubernetesLockProvider, KubernetesLockProvider

__all__ = ["AsyncKubernetesLockProvider", "KubernetesLockProvider"]
