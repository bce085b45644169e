"""The index of the providers leads to each page; the manifests of the Kubernetes page fit together."""

from __future__ import annotations

import re

from shedlock_py.providers.kubernetes.wire import VERBS
from shedlock_py.settings.urls import SCHEMES
from tests.guides.documents import DOCS, README, yaml_of

PAGES = DOCS / "providers"


def faults_of(scheme: str) -> list[str]:
    """What is missing of a scheme in the tables of the index and of the reference."""
    module, name, _ = SCHEMES[scheme]
    index, reference = (PAGES / "README.md").read_text(), (DOCS / "reference" / "api" / "providers.md").read_text()
    rows = re.findall(rf"^\| \[.*`{re.escape(scheme)}://.*", index, re.MULTILINE)
    if len(rows) != 1:
        return [f"{scheme} is {len(rows)} times in the first table of the index"]
    page = rows[0].partition("](")[2].partition(")")[0]
    expected = {
        "its class is not in its row": f"`{name}`" in rows[0],
        "its page is missing": (PAGES / page).is_file(),
        "it is not in both tables": len(re.findall(rf"^\| \[[^]]*\]\({page}\)", index, re.MULTILINE)) == 2,
        "the reference does not have it": re.search(
            rf"^::: {module}\.{name}$|^::: shedlock_py\.{name}$", reference, re.MULTILINE
        ),
    }
    return [f"{scheme}: {fault}" for fault, is_well in expected.items() if not is_well]


def test_each_scheme_has_a_page_and_is_in_the_tables() -> None:
    assert len(SCHEMES) > 10
    assert [fault for scheme in SCHEMES for fault in faults_of(scheme)] == []


def test_every_page_is_linked_from_the_index_and_the_index_from_the_readme() -> None:
    pages = {path.name for path in PAGES.glob("*.md")} - {"README.md"}
    assert len(pages) > 10
    index = set(re.findall(r"\]\(([\w-]+\.md)", (PAGES / "README.md").read_text()))
    readme = re.findall(r"\]\(docs/providers/([\w-]+\.md)", README.read_text())
    assert pages <= index
    assert readme == ["postgresql.md", "mysql.md", "redis.md", "mongodb.md", "README.md"]


def test_the_manifests_of_the_kubernetes_page() -> None:
    """That these verbs are enough, and no more than that: test_access.py of tests/stores/kubernetes."""
    account, role, binding = yaml_of(PAGES / "kubernetes.md", "role.yaml")
    assert role["rules"] == [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": [*VERBS]}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"][0]["name"] == account["metadata"]["name"]
    (deployment,) = yaml_of(PAGES / "kubernetes.md", "deployment.yaml")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert {variable["name"] for variable in pod["containers"][0]["env"]} == {"SHEDLOCK_STORE", "POD_NAME"}
