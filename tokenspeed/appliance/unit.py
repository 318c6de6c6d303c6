"""What systemd reads: the units that every instance shares, and what one plan adds to them.

`systemd/` in the repository holds the shared ones as `tokenspeed install` writes them.
"""

from __future__ import annotations

from tokenspeed.plan import Plan

STATE_ROOT = "/var/lib/tokenspeed"
CREDENTIALS = "/etc/tokenspeed/credentials"
USER = "tokenspeed"
PROGRAM = "/opt/tokenspeed/bin/tokenspeed"
# Where the files go, below the root of the system.
UNITS = "etc/systemd/system"
SYSUSERS = "etc/sysusers.d/tokenspeed.conf"
TMPFILES = "etc/tmpfiles.d/tokenspeed.conf"
# Beyond the longest drain: the worker's own end, and what is left to send.
STOP_MARGIN_SECONDS = 30

_SERVICE = """\
# Written by `tokenspeed install`. To change something: systemctl edit tokenspeed@NAME
[Unit]
Description=tokenspeed, recipe %i
After=network.target nvidia-persistenced.service nvidia-fabricmanager.service
Wants=tokenspeed@%i.socket
After=tokenspeed@%i.socket
PartOf=tokenspeed.target
ConditionPathExists={state}/%i/current
# So many starts in vain, and it stays down until `systemctl reset-failed`.
StartLimitIntervalSec=10min
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart={program} up --installed %i
ExecReload={program} reload %i
User={user}
Group={user}
KillMode=mixed
# Each step forward of a start extends it, so a slow one passes and a stuck one does not.
TimeoutStartSec=5min
TimeoutStopSec={stop}
# The front says every second that it and its worker are alive.
WatchdogSec=60
Restart=on-failure
RestartSec=1
# The user must mend something: bad usage, recipe, input, permission, plan or machine.
RestartPreventExitStatus=64 65 66 77 78
FileDescriptorStoreMax=1
OOMPolicy=stop
LimitMEMLOCK=infinity
LimitNOFILE=1048576
# The memory of a worker is no use in a file.
LimitCORE=0
TasksMax=8192
SyslogIdentifier=tokenspeed
LogExtraFields=TOKENSPEED_RECIPE=%i
WorkingDirectory={state}
StateDirectory=tokenspeed
StateDirectoryMode=0750
CacheDirectory=tokenspeed
CacheDirectoryMode=0750
RuntimeDirectory=tokenspeed/%i
RuntimeDirectoryMode=0700
Environment=HOME={state} XDG_CACHE_HOME=/var/cache/tokenspeed
Environment=TRITON_CACHE_DIR=/var/cache/tokenspeed/triton
Environment=TORCHINDUCTOR_CACHE_DIR=/var/cache/tokenspeed/inductor
Environment=CUDA_CACHE_PATH=/var/cache/tokenspeed/cuda
UMask=0077
PrivateMounts=yes
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectProc=invisible
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
RemoveIPC=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
# Kernels are compiled at run time, so MemoryDenyWriteExecute is left out; a GPU's device files are
# added for plans that need one, so PrivateDevices is too.
DevicePolicy=closed

[Install]
WantedBy=tokenspeed.target
"""

_SOCKET = """\
# Written by `tokenspeed install`. It holds the port: a restart refuses nobody.
[Unit]
Description=tokenspeed, port of recipe %i
PartOf=tokenspeed.target

[Socket]
# Each instance's own address is in a drop-in.
ListenStream=127.0.0.1:8000
Backlog=4096
# The address may come later than the machine.
FreeBind=yes

[Install]
WantedBy=tokenspeed.target
"""

_TARGET = """\
# Written by `tokenspeed install`.
[Unit]
Description=Every tokenspeed instance

[Install]
WantedBy=multi-user.target
"""

_SYSUSERS = """\
# Written by `tokenspeed install`. The groups lead to the device files of GPUs.
u {user} - "tokenspeed" {state}
m {user} video
m {user} render
"""

_TMPFILES = """\
# Written by `tokenspeed install`.
d /etc/tokenspeed 0755 root root
d {credentials} 0700 root root
d {state} 0750 {user} {user}
"""

# Both names of a group: it changed between drivers, and a wrong one makes a GPU vanish silently.
_DEVICES = {
    "cpu": (),
    "cuda": (
        *("char-nvidia", "char-nvidia-frontend", "char-nvidiactl", "char-nvidia-uvm"),
        *("char-nvidia-caps", "char-infiniband_verbs"),
    ),
    "rocm": ("char-drm", "char-kfd", "char-infiniband_verbs"),
}


def shared_files(program: str = PROGRAM) -> dict[str, str]:
    """Path below the root of the system -> text."""
    known = {
        "state": STATE_ROOT,
        "credentials": CREDENTIALS,
        "user": USER,
        "program": program,
        "stop": "90",
    }
    return {
        f"{UNITS}/tokenspeed@.service": _SERVICE.format(**known),
        f"{UNITS}/tokenspeed@.socket": _SOCKET,
        f"{UNITS}/tokenspeed.target": _TARGET,
        SYSUSERS: _SYSUSERS.format(**known),
        TMPFILES: _TMPFILES.format(**known),
    }


def instance_files(plan: Plan) -> dict[str, str]:
    """What the plan adds: the address, the time to drain, the devices, the secrets."""
    serve = plan.serve
    address = f"[{serve.host}]:{serve.port}" if ":" in serve.host else f"{serve.host}:{serve.port}"
    socket = ["[Socket]", "ListenStream=", f"ListenStream={_numeric(address)}"]
    service = ["[Service]", f"TimeoutStopSec={round(serve.drain_seconds) + STOP_MARGIN_SECONDS}"]
    service += [f"DeviceAllow={group} rw" for group in _DEVICES[plan.device.kind]]
    for name in credential_names(plan):
        service.append(f"LoadCredential={name}:{CREDENTIALS}/{plan.name}/{name}")
    note = "# Written by `tokenspeed install` from the plan."
    base = f"{UNITS}/tokenspeed@{plan.name}"
    return {
        f"{base}.service.d/plan.conf": "\n".join([note, *service, ""]),
        f"{base}.socket.d/plan.conf": "\n".join([note, *socket, ""]),
    }


def credential_names(plan: Plan) -> tuple[str, ...]:
    """Of the systemd credentials that the plan refers to."""
    references = [*plan.serve.api_keys, plan.model.token or ""]
    kind = "credential:"
    found = (text.removeprefix(kind) for text in references if text.startswith(kind))
    return tuple(dict.fromkeys(found))


def _numeric(address: str) -> str:
    """systemd takes addresses, no names."""
    return address.replace("localhost:", "127.0.0.1:")
