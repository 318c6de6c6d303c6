"""A plan as a Helm chart: the objects that `export.kubernetes` writes, with a few values to set.

    Chart.yaml
    values.yaml        image, resources, storage, nodeSelector, tolerations
    recipes/           the recipe and what it refers to, as they are
    templates/         one file for each object

Everything else is the plan's, and changes with it: export again, and upgrade.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenspeed.appliance.export import Container, objects, written

RECIPES = "recipes"
# A value in an object, and what stands there in the chart.
_VALUES = {
    "image": "{{ .Values.image | quote }}",
    "storage": "{{ .Values.storage | quote }}",
    "resources": "{{- toYaml .Values.resources | nindent %d }}",
    "nodeSelector": "{{- toYaml .Values.nodeSelector | nindent %d }}",
    "tolerations": "{{- toYaml .Values.tolerations | nindent %d }}",
}
_PLACE = re.compile(r"^( *)((?:- )?)(\w+): <(\w+)>$", re.MULTILINE)


def chart(one: Container, version: str) -> dict[str, str]:
    """The files of the chart by their path in its folder. `version` is tokenspeed's."""
    values: dict[str, Any] = {"nodeSelector": {}, "tolerations": []}
    files = {}
    for document in objects(one):
        match document["kind"]:
            case "ConfigMap":
                document["data"] = "<recipes>"
            case "PersistentVolumeClaim":
                requests = document["spec"]["resources"]["requests"]
                values["storage"], requests["storage"] = requests["storage"], "<storage>"
            case "Deployment":
                pod = document["spec"]["template"]["spec"]
                (container,) = pod["containers"]
                for name in ("image", "resources"):
                    values[name], container[name] = container[name], f"<{name}>"
                pod |= {name: f"<{name}>" for name in ("nodeSelector", "tolerations")}
        files[f"templates/{document['kind'].lower()}.yaml"] = _template(document)
    about = {
        "apiVersion": "v2",
        "name": one.name,
        "description": f"tokenspeed serving {one.name}",
        "type": "application",
        "version": version,
        "appVersion": version,
    }
    recipes = {f"{RECIPES}/{path.name}": path.read_text(encoding="utf-8") for path in one.files}
    return {"Chart.yaml": written(about), "values.yaml": written(values), **recipes, **files}


def _template(document: Mapping[str, Any]) -> str:
    # What the recipe says is no template.
    text = written(document).replace("{{", '{{ "{{" }}')
    recipes = f'{{{{- (.Files.Glob "{RECIPES}/*").AsConfig | nindent 2 }}}}'
    text = text.replace("data: <recipes>", f"data:\n  {recipes}")
    return _PLACE.sub(_placed, text)


def _placed(found: re.Match[str]) -> str:
    indent, dash, key, name = found.groups()
    value = _VALUES[name]
    if "%d" not in value:
        return f"{indent}{dash}{key}: {value}"
    deeper = len(indent) + len(dash) + 2
    return f"{indent}{dash}{key}:\n{' ' * deeper}{value % deeper}"
