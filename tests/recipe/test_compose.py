"""Several files and conditions become one recipe, and every value knows where it was said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tokenspeed.errors import NoInputError, Problem, RecipeError, UsageError
from tokenspeed.recipe.conditions import Facts
from tokenspeed.recipe.load import LoadedRecipe, load_recipe

BASE = """\
version: 1
name: base
model:
  source: hf:Qwen/Qwen3-8B
  served_names: [a, b]
kv: {block_size: 16, prefix_cache: false}
limits:
  max_running: 8
"""
H200 = Facts(device="cuda", arch="sm_90", memory_bytes=150 * 10**9, count=8, link="nvlink")
B200 = Facts(device="cuda", arch="sm_100", memory_bytes=192 * 10**9, count=8, link="nvlink")

Writer = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def refused(path: Path, *overrides: str, facts: Facts | None = None) -> list[Problem]:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides, facts)
    return list(caught.value.problems)


# ---- extends


def test_mappings_merge_lists_replace_null_deletes(write: Writer) -> None:
    write("base.yaml", BASE)
    child = write(
        "child.yaml",
        "extends: base.yaml\nname: child\nmodel: {served_names: [c]}\n"
        "kv: {block_size: 64}\nlimits: null\n",
    )
    recipe = load_recipe(child).recipe
    assert (recipe.name, recipe.model.source) == ("child", "hf:Qwen/Qwen3-8B")
    assert recipe.model.served_names == ("c",)
    assert (recipe.kv.block_size, recipe.kv.prefix_cache) == (64, False)
    assert recipe.limits.max_running is None


def test_every_value_keeps_its_origin(write: Writer, tmp_path: Path) -> None:
    write("base.yaml", BASE)
    child = write("child.yaml", "extends: base.yaml\nname: child\nkv: {block_size: 64}\n")
    loaded = load_recipe(child, ("limits.max_running=4",))
    at = {key: str(where) for key, where in loaded.origins.items()}
    assert at["name"] == f"{tmp_path}/child.yaml:2:7"
    assert at["kv.block_size"] == f"{tmp_path}/child.yaml:3:18"
    assert at["kv.prefix_cache"] == f"{tmp_path}/base.yaml:6:36"
    assert at["model.source"] == f"{tmp_path}/base.yaml:4:11"
    assert at["limits.max_running"] == "--set limits.max_running=4"
    assert loaded.files == (child, tmp_path / "base.yaml")


def test_grandparents_and_folders(write: Writer, tmp_path: Path) -> None:
    """A relative path counts from the folder of the file that says it, extends and others."""
    write("base.yaml", BASE.replace("hf:Qwen/Qwen3-8B", "path:weights"))
    write("team/team.yaml", "extends: ../base.yaml\nserve: {chat_template: plain.jinja}\n")
    child = write("child.yaml", "extends: team/team.yaml\nname: child\n")
    loaded = load_recipe(child)
    assert [path.name for path in loaded.files] == ["child.yaml", "team.yaml", "base.yaml"]
    assert loaded.folder_of("model.source").resolve() == tmp_path
    assert loaded.folder_of("serve.chat_template") == tmp_path / "team"


def test_problems_of_a_parent_are_shown_at_their_place(write: Writer, tmp_path: Path) -> None:
    write("base.yaml", BASE + "sever: {port: 1}\n")
    child = write("child.yaml", "extends: base.yaml\nname: Child\n")
    name, unknown = refused(child)
    assert (name.path, str(name.where)) == ("name", f"{tmp_path}/child.yaml:2:7")
    assert (unknown.path, str(unknown.where)) == ("sever", f"{tmp_path}/base.yaml:9:1")


def test_a_circle_is_refused(write: Writer) -> None:
    write("a.yaml", "extends: b.yaml\n" + BASE)
    write("b.yaml", "extends: a.yaml\n")
    (problem,) = refused(write("child.yaml", "extends: a.yaml\nname: child\n"))
    assert problem.code == "TS-R030"
    assert "a.yaml -> b.yaml -> a.yaml" in problem.message
    assert problem.where is not None
    assert problem.where.file.endswith("b.yaml")


def test_a_file_that_extends_itself(write: Writer) -> None:
    (problem,) = refused(write("a.yaml", "extends: a.yaml\n" + BASE))
    assert "a.yaml -> a.yaml" in problem.message


@pytest.mark.parametrize(
    ("extends", "message"),
    [
        ("none.yaml", "cannot be read: No such file"),
        ("[a.yaml, b.yaml]", "a recipe extends one file"),
        ("", "a recipe extends one file"),
        ("/etc/base.yaml", "an absolute path"),
        ("~/base.yaml", "an absolute path"),
    ],
)
def test_parents_that_cannot_be_followed(write: Writer, extends: str, message: str) -> None:
    (problem,) = refused(write("child.yaml", f"extends: {extends}\n{BASE}"))
    assert (problem.code, problem.path) == ("TS-R030", "extends")
    assert message in problem.message
    assert problem.where is not None
    assert problem.where.line == 1
    assert problem.hint


def test_long_chains_end(write: Writer) -> None:
    write("0.yaml", BASE)
    for n in range(1, 12):
        path = write(f"{n}.yaml", f"extends: {n - 1}.yaml\n")
    (problem,) = refused(path)
    assert "more than 8 files" in problem.message


def test_a_missing_recipe_is_no_wrong_parent(tmp_path: Path) -> None:
    with pytest.raises(NoInputError):
        load_recipe(tmp_path / "none.yaml")


def test_lost_indentation_deletes_nothing(write: Writer) -> None:
    """C03 b holds with a parent too: nothing after a colon is not the word null."""
    write("base.yaml", BASE)
    empty, unknown = refused(
        write("child.yaml", "extends: base.yaml\nname: child\nlimits:\nmax_running: 4\n")
    )
    assert (empty.code, empty.path) == ("TS-R007", "limits")
    assert (unknown.code, unknown.path) == ("TS-R010", "max_running")


def test_a_null_that_deletes_nothing_is_refused(write: Writer) -> None:
    write("base.yaml", BASE)
    (problem,) = refused(write("child.yaml", "extends: base.yaml\nserve: {port: null}\n"))
    assert (problem.code, problem.path) == ("TS-R007", "serve.port")


@pytest.mark.parametrize("override", ["extends=a.yaml", "when=[]"])
def test_the_command_line_composes_no_files(write: Writer, override: str) -> None:
    with pytest.raises(UsageError, match="composes files"):
        load_recipe(write("base.yaml", BASE), (override,))


# ---- when

CONDITIONAL = (
    BASE
    + """\
when:
  - if: {arch: [sm_100, sm_103]}
    then:
      kv: {block_size: 128}
  - if: {count: ">=4", memory: ">=140GiB"}
    then:
      limits: {max_running: 64}
"""
)


def on(path: Path, facts: Facts | None, *overrides: str) -> LoadedRecipe:
    return load_recipe(path, overrides, facts)


def test_conditions_choose(write: Writer) -> None:
    path = write("r.yaml", CONDITIONAL)
    here = {
        name: (r.kv.block_size, r.limits.max_running)
        for name, facts in (("none", None), ("h200", H200), ("b200", B200))
        if (r := on(path, facts).recipe)
    }
    assert here == {"none": (16, 8), "h200": (16, 8), "b200": (128, 64)}
    assert list(map(str, on(path, B200).held)) == [
        "arch sm_100 or sm_103",
        "count >=4 and memory >=140GiB",
    ]


def test_origins_and_overrides_of_conditional_values(write: Writer, tmp_path: Path) -> None:
    path = write("r.yaml", CONDITIONAL)
    assert str(on(path, B200).origins["kv.block_size"]) == f"{tmp_path}/r.yaml:12:24"
    assert on(path, B200, "kv.block_size=32").recipe.kv.block_size == 32


def test_a_child_overrides_what_its_parent_came_to(write: Writer) -> None:
    write("base.yaml", CONDITIONAL)
    child = write("child.yaml", "extends: base.yaml\nkv: {block_size: 256}\n")
    assert on(child, B200).recipe.kv.block_size == 256
    assert on(child, B200).recipe.limits.max_running == 64


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("arch: sm_90", True),
        ("arch: [sm_80, sm_90]", True),
        ("arch: sm_100", False),
        ("device: cuda", True),
        ("device: cpu", False),
        ("link: nvlink", True),
        ("link: pcie", False),
        ("count: 8", True),
        ('count: "8"', True),
        ('count: ">8"', False),
        ('count: "<=8"', True),
        ('memory: ">=80GiB"', True),
        ('memory: "<80GiB"', False),
        ('memory: "> 1TiB"', False),
        ('arch: sm_90, count: ">=9"', False),
    ],
)
def test_conditions(write: Writer, condition: str, holds: bool) -> None:
    text = f"{BASE}when:\n  - if: {{{condition}}}\n    then: {{kv: {{block_size: 32}}}}\n"
    assert (on(write("r.yaml", text), H200).recipe.kv.block_size == 32) is holds


def test_what_would_hold_elsewhere_is_validated_here(write: Writer) -> None:
    """A typo must not wait for the machine that it is meant for."""
    text = f"{BASE}when:\n  - if: {{arch: sm_100}}\n    then:\n      kv: {{blok_size: 32}}\n"
    for facts in (None, H200):
        (problem,) = refused(write("r.yaml", text), facts=facts)
        assert (problem.code, problem.path) == ("TS-R010", "kv.blok_size")
        assert problem.where is not None
        assert problem.where.line == 12


def test_conditions_that_exclude_each_other_do_not_contradict(write: Writer) -> None:
    text = (
        f"{BASE}when:\n  - if: {{arch: sm_90}}\n    then: {{kv: {{size: 1GiB}}}}\n"
        "  - if: {arch: sm_100}\n    then: {kv: {blocks: 100}}\n"
    )
    assert on(write("r.yaml", text), H200).recipe.kv.size == 2**30
    assert on(write("r.yaml", text), B200).recipe.kv.blocks == 100


@pytest.mark.parametrize(
    ("when", "path", "message"),
    [
        ("{arch: sm_90}", "when", "not a list"),
        ("[{if: {arch: sm_90}}]", "when[0].then", "then is missing"),
        ("[{then: {kv: {}}}]", "when[0].if", "if is missing"),
        ("[sm_90]", "when[0].if", "if is missing"),
        ("[{if: {}, then: {device: cpu}}]", "when[0].if", "no keys"),
        ("[{if: {arch: a}, then: 5}]", "when[0].then", "no keys"),
        ("[{if: {arch: a}, then: {name: x}}]", "when[0].then.name", "cannot depend"),
        ("[{if: {arch: a}, then: {device: cpu}, else: {}}]", "when[0].else", "unknown key"),
        ("[{if: {arhc: a}, then: {device: cpu}}]", "when[0].if.arhc", "unknown condition"),
        ("[{if: {link: nvlinc}, then: {device: cpu}}]", "when[0].if.link", "nvlinc is not"),
        ("[{if: {memory: 80}, then: {device: cpu}}]", "when[0].if.memory", "80 is not"),
        ('[{if: {memory: ">80GB"}, then: {device: cpu}}]', "when[0].if.memory", ">80GB is not"),
        ('[{if: {count: ">=4.5"}, then: {device: cpu}}]', "when[0].if.count", ">=4.5 is not"),
        ("[{if: {count: 2.0}, then: {device: cpu}}]", "when[0].if.count", "2.0 is not"),
        ("[{if: {count: true}, then: {device: cpu}}]", "when[0].if.count", "True is not"),
        ("[{if: {arch: [1]}, then: {device: cpu}}]", "when[0].if.arch", "1 is not"),
    ],
)
def test_malformed_conditions(write: Writer, when: str, path: str, message: str) -> None:
    problems = refused(write("r.yaml", f"{BASE}when: {when}\n"))
    assert problems[0].path == path
    assert message in problems[0].message
    assert all(p.hint and p.where and p.where.line == 9 for p in problems)
