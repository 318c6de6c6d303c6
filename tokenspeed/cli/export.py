"""`tokenspeed export`: a plan as Compose, Quadlet, Kubernetes or Helm take it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenspeed import __version__
from tokenspeed.appliance.chart import chart
from tokenspeed.appliance.export import FORMATS, container_of
from tokenspeed.appliance.order import refuse_unmet
from tokenspeed.cli.planning import hardware_argument, named_hardware, plan_recipe, recipe_arguments
from tokenspeed.errors import ExitCode, OutputError, Problem, UsageError
from tokenspeed.files import write_whole

HELP = "generate a recipe's service as compose, quadlet, kubernetes or helm files"

HELM = "helm"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "format",
        choices=(*FORMATS, HELM),
        help="compose: a compose.yaml; quadlet: a .container unit for podman; kubernetes: a "
        "ConfigMap, a volume claim, a Deployment and a Service; helm: the same as a chart",
    )
    parser.add_argument(
        "-o", dest="folder", type=Path, metavar="DIR", help="folder of the chart (default: NAME)"
    )
    recipe_arguments(parser)
    hardware_argument(parser)
    parser.add_argument(
        "--image", metavar="NAME", help="the image to run (default: tokenspeed:cpu or :cuda)"
    )


def run(args: argparse.Namespace) -> int:
    if args.folder and args.format != HELM:
        hint = "the other formats are one file, on standard output"
        raise UsageError(Problem(code="TS-C001", message="-o is for a chart", hint=hint))
    overrides = tuple(args.overrides)
    planned = plan_recipe(args.recipe, overrides, named_hardware(args.hardware))
    plan = planned.resolution.plan
    refuse_unmet(plan)
    files = [path.resolve() for path in planned.loaded.files]
    if (template := planned.loaded.recipe.serve.chat_template) is not None:
        folder = planned.loaded.folder_of("serve.chat_template")
        files.append((folder / Path(template).expanduser()).resolve())
    image = args.image or f"tokenspeed:{plan.device.kind}"
    container = container_of(plan, image, tuple(files), overrides)
    if args.format == HELM:
        folder = args.folder or Path(plan.name)
        _write(folder, chart(container, __version__))
        print(f"{folder}: helm install {plan.name} {folder}")
    else:
        print(FORMATS[args.format](container), end="")
    return int(ExitCode.OK)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        except OSError as error:
            raise OutputError(str(path), error) from error
