"""The frame: locked versions, a command line that loads nothing heavy, import walls, nothing tracked that names a machine or a registry."""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
HEAVY = ("torch", "numpy", "pydantic", "faust", "confluent_kafka", "rocksdict")
# Written in pieces, so that this file does not itself contain what it looks for.
REGISTRY_HOSTS = ("py" + "pi.org", "pythonhosted" + ".org", "maven" + ".org", "maven" + ".apache.org", "npmjs" + ".org", "crates" + ".io")
MACHINE_PATHS = ("/wo" + "rk/", "/ro" + "ot/", "/ho" + "me/")


def _tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout: which files are tracked is unknown")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def _lock_entries() -> list[str]:
    """The entries of requirements.lock, each with its hashes."""
    text = (ROOT / "requirements.lock").read_text()
    return [entry for entry in re.split(r"\n(?=[A-Za-z0-9])", text) if not entry.startswith("#")]


def _locked_versions() -> dict[str, str]:
    """What the lock asks for on this Python: an entry may be for another one."""
    entries = [Requirement(entry.split("\\")[0]) for entry in _lock_entries()]
    here = [entry for entry in entries if entry.marker is None or entry.marker.evaluate()]
    return {_normal(entry.name): str(entry.specifier).removeprefix("==") for entry in here}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_installed_distributions_are_those_of_requirements_lock() -> None:
    installed = {_normal(found.metadata["Name"]): found.version for found in importlib.metadata.distributions()}
    installed.pop("aif")
    for of_the_environment_itself in ("pip", "setuptools", "wheel", "uv"):
        if of_the_environment_itself not in _locked_versions():
            installed.pop(of_the_environment_itself, None)
    assert installed == _locked_versions()


def test_every_locked_distribution_has_a_hash_and_the_lock_names_no_host() -> None:
    assert len(_lock_entries()) > 50
    assert [entry for entry in _lock_entries() if "--hash=sha256:" not in entry] == []
    assert "://" not in (ROOT / "requirements.lock").read_text()


def test_every_dependency_of_a_clone_is_pinned_exactly() -> None:
    """Those of the base install have ranges, because it is next to other libraries; a clone pins them as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = [Requirement(text) for text in project["tool"]["uv"]["constraint-dependencies"]]
    groups = [*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values()]
    named = [Requirement(text) for group in groups for text in group]
    assert [str(one) for one in (*pinned, *named) if one.name != "aif" and not str(one.specifier).startswith("==")] == []
    assert {one.name for one in pinned} == {Requirement(text).name for text in project["project"]["dependencies"]}


def test_the_help_of_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, infra.cli\nsys.argv = ['aif', '--help']\ntry: infra.cli.main()\nexcept SystemExit: pass\nprint(chr(10) + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "broker" in done.stdout
    loaded = {name.split(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert loaded.isdisjoint(HEAVY), sorted(loaded & set(HEAVY))


def test_a_cli_file_imports_only_typer_the_standard_library_and_other_light_files_at_module_level() -> None:
    ours_and_light = {
        "infra.clock",
        "infra.command",
        "infra.extras",
        "schemas.errors",
        "schemas.ids",
        "schemas.index.lifecycle",
        "schemas.topics",
    }
    for path in sorted([*ROOT.glob("*/**/cli.py"), *ROOT.glob("*/**/*_cli.py")]):
        if path.relative_to(ROOT).parts[0] not in ("aif", "infra", "lab", "streams", "serving", "schemas"):
            continue
        for name in _imports_at_module_level(path):
            allowed = (
                name == "typer"
                or name.split(".")[0] in sys.stdlib_module_names
                or name in ours_and_light
                or name.endswith((".cli", "_cli"))
            )
            assert allowed, f"{path.relative_to(ROOT)} imports {name} at module level; move it into the command"


def _imports_at_module_level(path: Path) -> list[str]:
    names = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
    return names


def test_the_import_walls_of_pyproject_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()"],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_no_file_imports_one_that_imports_it_however_far_around() -> None:
    graph = grimp.build_graph("aif", "schemas", "infra", "streams", "serving", "lab", cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()  # raises CycleError


def test_no_tracked_file_names_a_registry_host_or_a_path_of_a_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {forbidden}"
        for path in _tracked_files()
        for forbidden in (*REGISTRY_HOSTS, *MACHINE_PATHS)
        if forbidden in path.read_text(errors="replace")
    ]
    assert found == []


def test_uv_lock_is_not_tracked_because_it_names_hosts() -> None:
    assert ROOT / "uv.lock" not in _tracked_files()


def test_an_error_of_ours_is_one_message_with_its_code_and_exit_code_1() -> None:
    code = "import sys, infra.cli; sys.argv = ['aif', 'config', 'show', '--json']; infra.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={"AIF_KAFA__X": "1"}, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert json.loads(done.stderr)["error"]["code"] == "unknown_setting"


def test_a_wrong_command_is_exit_code_2() -> None:
    code = "import sys, infra.cli; sys.argv = ['aif', 'no-such-command']; infra.cli.main()"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False).returncode == 2


def test_every_rule_that_the_code_cites_stands_in_the_protocol() -> None:
    text = (ROOT / "docs" / "PROTOCOL.md").read_text()
    told = set(re.findall(r"^(?:\| |- \*\*)([A-DI]\d{1,2})", text, re.MULTILINE))
    cited = re.compile(r"(?:\(|protocol |invariants? |, | to | and |# )([A-DI]\d{1,2})(?=[).,;: ])")
    code = [
        path
        for path in _tracked_files()
        if path.suffix == ".py" and path.parts[len(ROOT.parts)] in ("aif", "schemas", "streams", "serving", "infra", "lab")
    ]
    unknown = {(path.name, rule) for path in code for rule in cited.findall(path.read_text()) if rule not in told}
    assert unknown == set()
    assert len(told) > 30


def test_a_room_that_has_a_map_of_its_files_has_all_of_them_on_it_and_no_others() -> None:
    wrong = []
    for opening in (path for path in _tracked_files() if path.name == "__init__.py" and "tests" not in path.parts):
        told = ast.get_docstring(ast.parse(opening.read_text())) or ""
        if re.search(r"^ *\w+\.py {2,}", told, re.MULTILINE):
            on_it = set(re.findall(r"(?<![/\w])\w+\.py", told))
            there = {file.name for file in opening.parent.glob("*.py") if file != opening}
            wrong += [str(opening.parent.relative_to(ROOT) / name) for name in sorted(on_it ^ there)]
    assert wrong == []
