"""The index of the providers leads to each page; the manifests of the Kubernetes page fit together."""

from __future__ import annotations

import re

from shedlock_py.providers.kubernetes.wire import VERBS
from tests.guides.documents import DOCS, README, yaml_of

PAGES = DOCS / "providers"


def test_every_page_is_linked_from_the_index_and_the_index_from_the_readme() -> None:
    pages = {path.name for path in PAGES.glob("*.md")} - {"README.md"}
    assert len(pages) > 10
    index = set(re.findall(r"\]\(([\w-]+\.md)", (PAGES / "README.md").read_text()))
    readme = re.findall(r"\]\(docs/providers/([\w-]+\.md)", README.read_text())
    assert pages <= index
    assert readme == ["postgresql.md", "mysql.md", "redis.md", "mongodb.md", "README.md"]


def test_the_manifests_of_the_kubernetes_page() -> None:
    """test_access.py of tests/stores/kubernetes shows that these verbs are enough, and all needed."""
    account, role, binding = yaml_of(PAGES / "kubernetes.md", "role.yaml")
    assert role["rules"] == [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*VERBS]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    (template,) = yaml_of(PAGES / "kubernetes.md", "deployment.yaml (excerpt)")
    pod = template["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert {variable["name"] for variable in pod["containers"][0]["env"]} == {"SHEDLOCK_STORE", "POD_NAME"}
