"""Makes the Helm chart of the manifests for kustomize, so that both are the same.

python -m deploy.helm.make        needs kubectl; a test says when the chart is older than the manifests

../kubernetes/base, overlays/* ──▶ kubectl kustomize ──▶ sash/templates/MODE.yaml, one of which `mode` chooses
                                             └────────▶ sash/values.yaml: what may differ, as the manifests have it
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
CHART = Path(__file__).parent / "sash"
TOOLS = ROOT / "build" / "kubernetes"
"""Where `make setup` puts kubectl and helm."""

MODES = {
    "volume": KUBERNETES / "base",
    "redis": KUBERNETES / "overlays" / "redis",
    "sharded": KUBERNETES / "overlays" / "sharded",
    "standby": KUBERNETES / "overlays" / "standby",
}
_POD = ("StatefulSet", "spec", "template", "spec")
_CONTAINER = (*_POD, "containers", 0)
VALUES: dict[str, tuple[tuple[str | int, ...], str]] = {
    "image": ((*_CONTAINER, "image"), "the image and its version"),
    "resources": ((*_CONTAINER, "resources"), "what each pod asks for; the service takes four fifths of the memory"),
    "tokensSecret": ((*_POD, "volumes", 0, "secret", "secretName"), "has the file tokens.yaml"),
    "tlsSecret": ((*_POD, "volumes", 1, "secret", "secretName"), "has the certificate, of type kubernetes.io/tls"),
    "redisSecret": (
        (*_CONTAINER, "env", "SASH_DATA", "valueFrom", "secretKeyRef", "name"),
        "has the address of Redis as `url`; not of mode volume",
    ),
    "storage": (
        ("StatefulSet", "spec", "volumeClaimTemplates", 0, "spec", "resources", "requests", "storage"),
        "size of the volume; of mode volume",
    ),
    "replicas": (("StatefulSet", "spec", "replicas"), "how many pods share the shards; of mode sharded"),
    "settings": (("ConfigMap", "data"), "settings that are no secrets; those given are added to the mode's own"),
}
"""Value of the chart -> where it is in the manifests, and what it is."""


def tool(name: str) -> str:
    """The path of kubectl or helm: the one of `make setup`, or one on the path."""
    own = TOOLS / name / name
    return str(own) if own.exists() else name


def manifests(mode: str) -> list[dict[str, Any]]:
    """Build the manifests of a mode with kustomize."""
    command = [tool("kubectl"), "kustomize", str(MODES[mode])]
    built = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(yaml.safe_load_all(built))


def applies(name: str, mode: str) -> bool:
    """Whether a value is one of a mode."""
    return {"storage": mode == "volume", "redisSecret": mode != "volume", "replicas": mode == "sharded"}.get(name, True)


def place(documents: list[dict[str, Any]], path: tuple[str | int, ...]) -> tuple[Any, str | int]:
    """Find a path: the container of its last step, and that step. A text steps into a list of variables by name."""
    found: Any = next(document for document in documents if document["kind"] == path[0])
    for step in path[1:-1]:
        if isinstance(found, list) and isinstance(step, str):
            found = next(each for each in found if each["name"] == step)
        else:
            found = found[step]
    return found, path[-1]


def defaults() -> dict[str, Any]:
    """The values of the chart, as the manifests have them."""
    built = {mode: manifests(mode) for mode in MODES}
    found: dict[str, Any] = {}
    for name, (path, _) in VALUES.items():
        mode = next(mode for mode in MODES if applies(name, mode))
        inside, last = place(built[mode], path)
        found[name] = inside[last]
    return found | {"settings": {}}


def template(mode: str) -> str:
    """The template of a mode: its manifests, with the values in their places."""
    documents = manifests(mode)
    expressions: dict[str, str] = {}
    for name, (path, _) in VALUES.items():
        if not applies(name, mode):
            continue
        inside, last = place(documents, path)
        mark = f"VALUE-{name}"
        if name == "settings":
            own = json.dumps(inside[last], sort_keys=True)
            assert "`" not in own
            # Whoever gives a number means its text: a ConfigMap has nothing else.
            expressions[mark] = (
                f"{{{{ $all := dict }}}}{{{{ $given := merge (deepCopy .Values.settings) (fromJson `{own}`) }}}}"
                "{{ range $name, $value := $given }}{{ $_ := set $all $name (toString $value) }}{{ end }}"
                "{{ toJson $all }}"
            )
        else:
            expressions[mark] = f"{{{{ .Values.{name} | toJson }}}}"
        inside[last] = mark
    text = yaml.safe_dump_all(documents, sort_keys=False, width=1000)
    for mark, expression in expressions.items():
        text = text.replace(mark, expression)
    return f'{{{{- if eq .Values.mode "{mode}" }}}}\n{text}{{{{- end }}}}\n'


def files() -> Iterator[tuple[Path, str]]:
    """Each file of the chart that is made, with its text."""
    for mode in MODES:
        yield CHART / "templates" / f"{mode}.yaml", template(mode)
    lines = ["# Made by `python -m deploy.helm.make` of the manifests in deploy/kubernetes.", ""]
    lines += [f"# One of {', '.join(MODES)}.", "mode: volume"]
    for name, value in defaults().items():
        lines += [f"# {VALUES[name][1]}", yaml.safe_dump({name: value}, sort_keys=False).rstrip()]
    yield CHART / "values.yaml", "\n".join(lines) + "\n"


def main() -> None:
    for path, text in files():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        print(os.path.relpath(path, ROOT))


if __name__ == "__main__":
    main()
