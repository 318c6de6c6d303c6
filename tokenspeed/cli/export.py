"""`tokenspeed export`: a plan as Compose, Quadlet or Kubernetes take it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tokenspeed.appliance.export import FORMATS, container_of
from tokenspeed.appliance.order import refuse_unmet
from tokenspeed.cli.planning import hardware_argument, named_hardware, plan_recipe, recipe_arguments
from tokenspeed.errors import ExitCode

HELP = "write a recipe's service for another manager: compose, quadlet or kubernetes"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "format",
        choices=tuple(FORMATS),
        help="compose: a compose.yaml; quadlet: a .container unit for podman; kubernetes: a "
        "ConfigMap, a volume claim, a Deployment and a Service",
    )
    recipe_arguments(parser)
    hardware_argument(parser)
    parser.add_argument(
        "--image", metavar="NAME", help="the image to run (default: tokenspeed:cpu or :cuda)"
    )


def run(args: argparse.Namespace) -> int:
    overrides = tuple(args.overrides)
    planned = plan_recipe(args.recipe, overrides, named_hardware(args.hardware))
    plan = planned.resolution.plan
    refuse_unmet(plan)
    files = [path.resolve() for path in planned.loaded.files]
    if (template := planned.loaded.recipe.serve.chat_template) is not None:
        folder = planned.loaded.folder_of("serve.chat_template")
        files.append((folder / Path(template).expanduser()).resolve())
    image = args.image or f"tokenspeed:{plan.device.kind}"
    print(FORMATS[args.format](container_of(plan, image, tuple(files), overrides)), end="")
    return int(ExitCode.OK)
