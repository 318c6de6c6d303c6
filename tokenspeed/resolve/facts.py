"""What resolve must know beside the recipe: the model and this build. Reading it is done here,
so that resolve itself touches nothing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from tokenspeed import __version__, env
from tokenspeed.checkpoint import cards, describe
from tokenspeed.checkpoint.hub import fetched
from tokenspeed.checkpoint.source import Source, parse
from tokenspeed.errors import CheckpointError, NoInputError, Problem, Where
from tokenspeed.files import read_bounded
from tokenspeed.plan import ModelConfig, ModelFile
from tokenspeed.recipe.load import LoadedRecipe


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A model as its source describes it. `source` is absolute where it is a path.

    `container` is "gguf" or "safetensors"; formats are as `checkpoint.describe` has them.
    `chat_template` is the Jinja text that replaces the model's own, or None. `group_formats` are
    the groups of a quantised checkpoint that are not floats.
    """

    source: str
    source_kind: str
    container: str
    files: tuple[ModelFile, ...]
    config: ModelConfig
    linear_formats: tuple[str, ...]
    embedding_format: str
    chat_template: str | None
    group_formats: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildFacts:
    """What this build can run: how many ranks it drives, which parts of models it computes (as
    `resolve.runnable` names them) and in which formats; `traces`: whether what sends them is
    installed."""

    version: str
    max_ranks: int
    computes: frozenset[str] = frozenset()
    formats: frozenset[str] = frozenset(
        {
            *("float32", "bfloat16", "q4_1", "q8_0", "fp8", "fp8_block"),
            *("nvfp4", "mxfp4", "int4", "int4_g32"),
        }
    )
    traces: bool = False


def _sends_traces() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


THIS_BUILD = BuildFacts(
    version=__version__,
    max_ranks=1,
    computes=frozenset({"attention windows", "attention sinks", "latent attention", "experts"}),
    traces=_sends_traces(),
)


def model_facts(loaded: LoadedRecipe) -> ModelFacts:
    """Read what is known of the recipe's model: a built-in card, or the headers in its folder.

    Raises CheckpointError (the model is unknown, or its files are damaged) or NoInputError (the
    chat template cannot be read), each with the line of the recipe.
    """
    recipe = loaded.recipe
    source = parse(recipe.model.source)
    template = _chat_template(loaded)
    if source.kind == "path":
        folder = source.directory(loaded.folder_of("model.source"))
        return _from_folder(folder, recipe.model.load == "dummy", template)
    card = cards.find(source)
    if card is None and source.kind == "hf":
        # `tokenspeed pull` makes any repository known.
        folder = fetched(env.data_root() / "weights", source)
        if folder.is_dir():
            found = _from_folder(folder, recipe.model.load == "dummy", template)
            return replace(found, source=source.text, source_kind=source.kind)
    if card is None:
        raise _unknown(source, loaded.origins.get("model.source"))
    return ModelFacts(
        source=source.text,
        source_kind=source.kind,
        container=card.container,
        files=card.files,
        config=card.config,
        linear_formats=card.linear_formats,
        embedding_format=card.embedding_format,
        group_formats=card.group_formats,
        chat_template=template,
    )


def _from_folder(path: Path, dummy: bool, template: str | None) -> ModelFacts:
    try:
        described = _described(path, dummy)
    except CheckpointError as error:
        # Where it is wrong is a file of the model; the key that led there is said beside it.
        named = (replace(problem, path="model.source") for problem in error.problems)
        raise CheckpointError(*named) from error
    return ModelFacts(
        source=f"path:{path}",
        source_kind="path",
        container=described.container,
        files=described.files,
        config=described.config,
        linear_formats=described.linear_formats,
        embedding_format=described.embedding_format,
        group_formats=described.group_formats,
        chat_template=template,
    )


def _described(path: Path, dummy: bool) -> describe.Described:
    if not dummy or not (path / "config.json").is_file():
        return describe.describe(path)
    return describe.without_files(path)


def _chat_template(loaded: LoadedRecipe) -> str | None:
    written = loaded.recipe.serve.chat_template
    if written is None:
        return None
    try:
        base = loaded.folder_of("serve.chat_template")
        return read_bounded(base / Path(written).expanduser()).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoInputError(
            Problem(
                code="TS-R019",
                path="serve.chat_template",
                message=f"the chat template cannot be read: {error}",
                where=loaded.origins.get("serve.chat_template"),
                hint="a relative path counts from the recipe's folder",
            )
        ) from error


def _unknown(source: Source, where: Where | None) -> CheckpointError:
    """Names a few known sources that may have been meant, and the way to plan any other."""
    known = cards.known()
    near = difflib.get_close_matches(source.text, known, n=3, cutoff=0.75)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    return CheckpointError(
        Problem(
            code="TS-W003",
            path="model.source",
            message=f"nothing is known of {source} before it is fetched",
            where=where,
            hint=f"{guess}`tokenspeed pull {source}` fetches it first; or a folder with the "
            "model's config.json will do: source: path:FOLDER, with "
            f"load: dummy while its weights are not there; {len(known)} models are known by name, "
            "`tokenspeed explain TS-W003` lists them",
        )
    )
