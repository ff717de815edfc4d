"""What is shipped, how its parts may import each other, and what no file of the repository may name."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*line: str, cwd: Path = ROOT) -> str:
    """Run a tool of this environment; the test fails with what it says if it fails."""
    result = subprocess.run([sys.executable, *line], cwd=cwd, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def built(kind: str, folder: Path, source: Path = ROOT) -> Path:
    """A wheel or a source distribution of the project."""
    run("-m", "hatchling", "build", "-t", kind, "-d", str(folder), cwd=source)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with zipfile.ZipFile(built("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        return archive.namelist()


def modules(folder: str, package: str) -> set[str]:
    """The modules of a folder, as they should lie in the wheel."""
    files = (ROOT / folder).rglob("*.py")
    return {f"{package}/{file.relative_to(ROOT / folder).as_posix()}" for file in files}


# ---- the wheel -------------------------------------------------------------------------------------------------------


def test_the_wheel_has_one_top_level_package(wheel: list[str]) -> None:
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kvcheck"}
    assert len(tops) == 2


def test_the_wheel_has_every_module_and_nothing_else(wheel: list[str]) -> None:
    model, invariants = modules("model", "kvcheck/model"), modules("invariants", "kvcheck/invariants")
    own = {
        name for name in modules("kvcheck", "kvcheck") if not name.startswith(("kvcheck/model/", "kvcheck/invariants/"))
    }
    assert len(model) > 5
    assert len(invariants) > 10
    python = {name for name in wheel if name.endswith(".py")}
    assert python == own | model | invariants
    others = {name for name in wheel if name not in python and ".dist-info/" not in name}
    scopes = {f"kvcheck/model/scopes/{file.name}" for file in (ROOT / "model" / "scopes").glob("*.json")}
    assert len(scopes) > 5
    templates = {file.relative_to(ROOT).as_posix() for file in (ROOT / "kvcheck/report/pages/templates").iterdir()}
    assert len(templates) > 3
    assert others == {"kvcheck/py.typed", *scopes, *templates}


def test_the_wheel_has_the_licence_and_the_command(wheel: list[str]) -> None:
    endings = {name.partition(".dist-info/")[2] for name in wheel if ".dist-info/" in name}
    assert {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"} <= endings


def test_a_wheel_made_from_the_source_distribution_is_the_same(wheel: list[str], tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    with zipfile.ZipFile(built("wheel", tmp_path / "again", source)) as archive:
        assert sorted(archive.namelist()) == sorted(wheel)


# ---- layers ----------------------------------------------------------------------------------------------------------


def test_the_import_contracts_hold() -> None:
    told = run("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    kept = re.search(r"Contracts: (\d+) kept, 0 broken", told)
    assert kept, told
    assert int(kept[1]) >= 2


FIRST_IMPORTS = """
import sys
import kvcheck.model.shadow, kvcheck.invariants.families, kvcheck.invariants.witnesses
ours = [name.split(".")[1] for name in sys.modules if name.startswith("kvcheck.")]
print(sorted(set(ours)), sorted({"z3", "hypothesis", "click", "rich", "vllm", "torch"} & set(sys.modules)))
"""


def test_the_model_and_the_invariants_need_nothing_else() -> None:
    """Importing them brings in no engine, no target, no solver and no command line."""
    assert run("-c", FIRST_IMPORTS) == "['invariants', 'model'] []\n"


# ---- every file ------------------------------------------------------------------------------------------------------


def repository_files() -> list[Path]:
    """Files that are or would be committed."""
    line = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    return [file for file in files if file.is_file() and not file.is_symlink()]


def lines_with(pattern: str) -> list[str]:
    """Places in the repository's files, this one excepted, where the pattern matches."""
    wanted = re.compile(pattern)
    found = []
    for file in repository_files():
        text = file.read_text(encoding="utf-8")
        if file != Path(__file__) and wanted.search(text):
            found += [
                f"{file.relative_to(ROOT)}:{number}: {line}"
                for number, line in enumerate(text.splitlines(), 1)
                if wanted.search(line)
            ]
    return found


def test_the_repository_is_seen() -> None:
    names = {file.relative_to(ROOT).as_posix() for file in repository_files()}
    assert {"README.md", "pyproject.toml", "check", ".ci/run", "model/shadow.py", "docs/rules.md"} <= names


def test_no_file_names_the_host_of_a_registry() -> None:
    """Packages are named, never where they come from: that is the machine's business."""
    assert lines_with(r"\b(pypi|pythonhosted|npmjs|debian|anaconda)\.(org|com)\b") == []


def test_no_file_names_a_path_of_a_machine() -> None:
    folders = ("tmp", "home", "root", "Users", "work", "mnt")
    assert lines_with(rf"(^|[^A-Za-z0-9_.$/*])/({'|'.join(folders)})/") == []


MAY_SKIP = (
    "tests/releases.py:", "tests/browser.py:", "kvcheck/export/claims.py:", "kvcheck/export/parts/",
    "kvcheck/pytest_plugin.py:",
)  # fmt: skip


def test_no_test_is_switched_off() -> None:
    """Reasons to skip: a release that cannot be fetched (in CI it fails), an extra that is not installed, and no
    browser. What exported tests and the plugin say is none of ours."""
    found = lines_with(r"pytest\.(skip|xfail)\(|mark\.(skip|skipif|xfail)\b|importorskip\(")
    reasons = [place for place in found if not place.startswith(MAY_SKIP)]
    assert [place for place in reasons if not re.search(r"pip install '\.\[vllm\]'", place)] == []


# ---- what the README tells people to type ----------------------------------------------------------------------------


def readme_commands() -> list[list[str]]:
    """The words of every indented line of the README that is a command of kvcheck."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^(?: {4}|\$ )(?:\S+/)?(kvcheck [a-z].*)$", text, re.MULTILINE)
    blocks += re.findall(r"&& (?:\S+/)?(kvcheck [a-z].*)$", text, re.MULTILINE)
    return [shlex.split(block.replace("|", " ").replace("[", " ").replace("]", " "), comments=True) for block in blocks]


def test_the_commands_in_the_readme_exist() -> None:
    commands = readme_commands()
    assert commands
    listed = run("-m", "kvcheck", "--help")
    helps: dict[str, str] = {}
    for _, command, *words in commands:
        assert re.search(rf"^ +{command}\b", listed, re.MULTILINE), f"kvcheck {command} is no command"
        if command not in helps:
            helps[command] = run("-m", "kvcheck", command, "--help")
        for option in (word.partition("=")[0] for word in words if word.startswith("--")):
            assert option in helps[command], f"kvcheck {command} has no option {option}"


def test_the_test_command_in_the_readme_is_what_ci_calls() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^ {4}\./check$", readme, re.MULTILINE)
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^exec \./check$", ci, re.MULTILINE)
    for script in ("check", ".ci/run"):
        assert (ROOT / script).stat().st_mode & 0o111, f"{script} is not executable"


def test_the_files_that_the_readme_links_to_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", readme) if "://" not in link]
    assert links
    assert [link for link in links if link and not (ROOT / link).exists()] == []
