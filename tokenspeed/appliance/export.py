"""A plan as what other managers of services take: Compose, Quadlet (podman under systemd) and
Kubernetes. One description of the container, three ways to write it down.

What is written is complete and strict: read-only root, no capabilities, one volume for weights and
caches, keys by reference and never by value. The image listens on all addresses of its own
network; what is published is the plan's address and port.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from tokenspeed.errors import Problem, UsageError, Where
from tokenspeed.plan import Plan

# As the image has them (containers/Containerfile).
PORT = 8000
STATE = "/var/lib/tokenspeed"
RUN = "/run/tokenspeed"
RECIPES = "/etc/tokenspeed/recipes"
CREDENTIALS = "/run/credentials"
USER = "65532:0"
GPU = "nvidia.com/gpu=all"
# What remains to do once the last request has ended or was told.
_MARGIN_S = 15
# Weights may have to be fetched, and graphs captured.
_START_S = 1800
_CACHES_BYTES = 10 * 2**30  # compiled kernels, logs
_SHARED_MEMORY = "1g"  # ranks on one host exchange through /dev/shm


@dataclass(frozen=True, slots=True)
class Container:
    """What any manager has to know. `folder` holds the recipe and all that it refers to; `files`
    are what a cluster, which does not see the folder, is to be given of it. `weights` is the
    model's folder where the recipe names one, and seen at the same path inside."""

    name: str
    image: str
    folder: Path
    recipe: str
    files: tuple[Path, ...]
    address: str
    port: int
    stop_s: int
    ranks: int
    gpu: bool
    memory_bytes: int
    download_bytes: int
    weights: str | None
    overrides: tuple[str, ...]
    variables: tuple[str, ...]
    key_files: tuple[str, ...]
    credentials: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        source = [f"model.source=path:{self.weights}"] if self.weights else []
        settings = (*self.overrides, *source, f"serve.port={PORT}")
        said = [word for setting in settings for word in ("--set", setting)]
        return [f"{RECIPES}/{self.recipe}", *said]


def container_of(
    plan: Plan, image: str, files: tuple[Path, ...], overrides: tuple[str, ...]
) -> Container:
    """`files` are absolute: the recipe, and what it extends or names. `overrides` are those that
    the plan was made with.

    Raises UsageError for files that are not in the recipe's folder: only that is mounted.
    """
    recipe = files[0]
    if stray := [str(path) for path in files if path.parent != recipe.parent]:
        raise UsageError(
            Problem(
                code="TS-C006",
                message=f"the recipe needs {', '.join(stray)}, outside the recipe's folder",
                where=Where(str(recipe)),
                hint=f"put the files that it extends or names into {recipe.parent}",
            )
        )
    keys = [reference.partition(":") for reference in plan.serve.api_keys]

    def of_kind(wanted: str) -> tuple[str, ...]:
        return tuple(name for kind, _, name in keys if kind == wanted)

    return Container(
        name=plan.name,
        image=image,
        folder=recipe.parent,
        recipe=recipe.name,
        files=files,
        address=plan.serve.host,
        port=plan.serve.port,
        stop_s=math.ceil(plan.serve.drain_seconds) + _MARGIN_S,
        ranks=plan.parallel.world_size,
        gpu=plan.device.kind != "cpu",
        memory_bytes=plan.memory.budget_bytes,
        download_bytes=sum(file.bytes for file in plan.model.files),
        weights=_folder_of(plan.model.source),
        overrides=overrides,
        variables=of_kind("env"),
        key_files=of_kind("file"),
        credentials=of_kind("credential"),
    )


def _folder_of(source: str) -> str | None:
    kind, _, path = source.partition(":")
    return path if kind == "path" else None


def compose(one: Container) -> str:
    """A compose.yaml of one service."""
    service: dict[str, Any] = {
        "image": one.image,
        "command": one.arguments,
        "ports": [f"{_bracketed(one.address)}:{one.port}:{PORT}"],
        "user": USER,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "tmpfs": ["/tmp", f"{RUN}:mode=0770,uid=65532"],
        "volumes": [
            f"{one.folder}:{RECIPES}:ro",
            f"{one.name}:{STATE}",
            *(f"{path}:{path}:ro" for path in _host_paths(one)),
        ],
        "healthcheck": {
            "test": ["CMD", "tokenspeed", "status"],
            "interval": "10s",
            "start_period": f"{_START_S}s",
        },
        "stop_grace_period": f"{one.stop_s}s",
        "restart": "unless-stopped",
    }
    environment = list(one.variables)
    if one.credentials:
        environment.append(f"CREDENTIALS_DIRECTORY={CREDENTIALS}")
        service["secrets"] = [
            {"source": name, "target": f"{CREDENTIALS}/{name}"} for name in one.credentials
        ]
    if environment:
        service["environment"] = environment
    if one.gpu:
        service["devices"] = [GPU]
    if one.ranks > 1:
        service["shm_size"] = _SHARED_MEMORY
    body: dict[str, Any] = {"services": {one.name: service}, "volumes": {one.name: {}}}
    if one.credentials:
        body["secrets"] = {name: {"file": f"./credentials/{name}"} for name in one.credentials}
    return written(body)


def quadlet(one: Container) -> str:
    """A NAME.container for /etc/containers/systemd (podman 5 or later). The unit counts as started
    once the image is healthy; keys are podman's secrets."""
    lines = [
        "[Unit]",
        f"Description=tokenspeed {one.name}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Container]",
        f"ContainerName={one.name}",
        f"Image={one.image}",
        f"Exec={_plain(shlex.join(one.arguments))}",
        f"PublishPort={_bracketed(one.address)}:{one.port}:{PORT}",
        f"User={USER.partition(':')[0]}",
        f"Group={USER.partition(':')[2]}",
        "ReadOnly=true",
        "ReadOnlyTmpfs=false",
        "DropCapability=all",
        "NoNewPrivileges=true",
        "Tmpfs=/tmp",
        f"Tmpfs={RUN}:mode=0770",
        f"Volume={_plain(str(one.folder))}:{RECIPES}:ro",
        f"Volume=tokenspeed-{one.name}:{STATE}:U",
        *(f"Volume={_plain(path)}:{_plain(path)}:ro" for path in _host_paths(one)),
        *(f"Secret={name},type=env,target={name}" for name in one.variables),
        *(f"Secret={name},target={CREDENTIALS}/{name},uid=65532" for name in one.credentials),
        *([f"Environment=CREDENTIALS_DIRECTORY={CREDENTIALS}"] if one.credentials else []),
        *([f"AddDevice={GPU}"] if one.gpu else []),
        *([f"ShmSize={_SHARED_MEMORY}"] if one.ranks > 1 else []),
        "HealthCmd=tokenspeed status",
        "HealthInterval=10s",
        f"HealthStartPeriod={_START_S}s",
        "Notify=healthy",
        f"StopTimeout={one.stop_s}",
        "",
        "[Service]",
        "Restart=on-failure",
        # A recipe that is wrong, or that this machine cannot run, stays so.
        "RestartPreventExitStatus=64 65 66 77 78",
        f"TimeoutStartSec={_START_S}",
        f"TimeoutStopSec={one.stop_s + _MARGIN_S}",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def kubernetes(one: Container) -> str:
    """A ConfigMap with the recipe, a volume claim, a Deployment and a Service."""
    return "---\n".join(written(document) for document in objects(one))


def objects(one: Container) -> tuple[dict[str, Any], ...]:
    """What `kubernetes` writes, as data."""
    data = {path.name: path.read_text(encoding="utf-8") for path in one.files}
    storage = _gibibytes(one.download_bytes + _CACHES_BYTES)
    labels = {"app.kubernetes.io/name": "tokenspeed", "app.kubernetes.io/instance": one.name}
    return (
        _object("v1", "ConfigMap", one.name, labels, data=data),
        _object(
            "v1", "PersistentVolumeClaim", one.name, labels,
            spec={
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": storage}},
            },
        ),
        _object(
            "apps/v1", "Deployment", one.name, labels,
            spec={
                "replicas": 1,
                # Two would want the same devices and the same volume.
                "strategy": {"type": "Recreate"},
                "progressDeadlineSeconds": _START_S,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": _pod(one)},
            },
        ),
        _object(
            "v1", "Service", one.name, labels,
            spec={
                "selector": labels,
                "ports": [{"name": "http", "port": one.port, "targetPort": "http"}],
            },
        ),
    )  # fmt: skip


FORMATS: Mapping[str, Callable[[Container], str]] = {
    "compose": compose,
    "quadlet": quadlet,
    "kubernetes": kubernetes,
}


def _pod(one: Container) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if one.gpu:
        resources = {"limits": {"nvidia.com/gpu": one.ranks}}
    else:
        resources = {"requests": {"memory": _gibibytes(one.memory_bytes)}}
    environment: list[dict[str, Any]] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": one.name, "key": name}}}
        for name in one.variables
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "recipe", "mountPath": RECIPES, "readOnly": True},
        {"name": "state", "mountPath": STATE},
        {"name": "run", "mountPath": RUN},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "recipe", "configMap": {"name": one.name}},
        {"name": "state", "persistentVolumeClaim": {"claimName": one.name}},
        {"name": "run", "emptyDir": {"medium": "Memory"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if one.credentials:
        environment.append({"name": "CREDENTIALS_DIRECTORY", "value": CREDENTIALS})
        mounts.append({"name": "credentials", "mountPath": CREDENTIALS, "readOnly": True})
    if one.credentials or one.key_files:
        volumes.append({"name": "credentials", "secret": {"secretName": one.name}})
    for path in one.key_files:
        name = PurePosixPath(path).name
        mounts.append({"name": "credentials", "mountPath": path, "subPath": name, "readOnly": True})
    if one.weights:
        mounts.append({"name": "weights", "mountPath": one.weights, "readOnly": True})
        volumes.append({"name": "weights", "hostPath": {"path": one.weights, "type": "Directory"}})
    if one.ranks > 1:
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    return {
        "terminationGracePeriodSeconds": one.stop_s,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532},
        "containers": [
            {
                "name": "tokenspeed",
                "image": one.image,
                "args": one.arguments,
                "ports": [{"name": "http", "containerPort": PORT}],
                "env": environment,
                "resources": resources,
                "volumeMounts": mounts,
                "startupProbe": _probe("/readyz", 5, _START_S // 5),
                "readinessProbe": _probe("/readyz", 5, 1),
                "livenessProbe": _probe("/livez", 10, 3),
                "securityContext": {
                    "readOnlyRootFilesystem": True,
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }
        ],
        "volumes": volumes,
    }


def _host_paths(one: Container) -> tuple[str, ...]:
    """Seen inside at the same path."""
    return (*one.key_files, *((one.weights,) if one.weights else ()))


def _probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "failureThreshold": failures,
    }


def _object(
    version: str, kind: str, name: str, labels: Mapping[str, str], **body: Any
) -> dict[str, Any]:
    metadata = {"name": name, "labels": dict(labels)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, and no anchors for what is said twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def written(body: Mapping[str, Any]) -> str:
    text: str = yaml.dump(
        dict(body), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100
    )
    return text


def _gibibytes(count: int) -> str:
    return f"{max(1, math.ceil(count / 2**30))}Gi"


def _bracketed(address: str) -> str:
    """An IPv6 address as it stands before a colon and a port."""
    return f"[{address}]" if ":" in address else address


def _plain(path: str) -> str:
    """For a unit file, in which % introduces a specifier."""
    return path.replace("%", "%%")
