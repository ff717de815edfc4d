"""`kvcheck bisect`: over releases, and over the commits of a repository made of two of them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from releases import release

from kvcheck.cli.main import run
from kvcheck.files import read_run, write_run
from kvcheck.targets.vllm.release import source_index

pytestmark = pytest.mark.release

ROOT = Path(__file__).parents[2]
DRAFTER = str(ROOT / "counterexamples/window-drafter-lookup-assertion")
HIT = str(ROOT / "counterexamples/checkpoint-behind-partial-hit")
LIMIT = str(ROOT / "counterexamples/chunk-limit-ignores-draft-slots")
FAILED_LOAD = str(ROOT / "counterexamples/failed-load-several-groups")


def git(repo: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    line = ["git", "-C", str(repo), *identity, *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A repository with the core of 0.27.1, unrelated commits, one that breaks the core, 0.28.0, and more commits."""
    folder = tmp_path_factory.mktemp("repo")
    git(folder, "init", "-q")
    commits = []

    def commit(what: str) -> None:
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", what)
        commits.append(git(folder, "rev-parse", "HEAD"))

    def put(version: str) -> None:
        shutil.rmtree(folder / "vllm", ignore_errors=True)
        root = release(version).root
        shutil.copytree(root / "vllm", folder / "vllm")
        for path in source_index(root) or ():  # a checkout has the others too, and nobody imports them
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).touch()
        (folder / "vllm/_version.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")

    put("0.27.1")
    commit("core of 0.27.1")
    for number in range(3):
        (folder / "notes.txt").write_text(str(number), encoding="utf-8")
        commit(f"note {number}")
    broken = folder / "vllm/v1/core/block_pool.py"
    whole = broken.read_text(encoding="utf-8")
    broken.write_text("this is no Python\n", encoding="utf-8")
    commit("does not load")
    broken.write_text(whole, encoding="utf-8")
    put("0.28.0")
    commit("the lookup is mended")
    (folder / "notes.txt").write_text("the end", encoding="utf-8")
    commit("last note")
    return folder, commits


def bisect(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    file = tmp_path / "b.json"
    status = run(["bisect", *arguments, "--json", str(file)])
    return status, json.loads(file.read_text())


def test_the_assertion_of_a_drafter_ends_with_0_28_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = bisect(tmp_path, DRAFTER, "--targets", "vllm==0.26.0,vllm==0.27.1,vllm==0.28.0,vllm==0.29.0")
    assert status == 0
    assert [one["verdict"] for one in report["results"]] == ["violated"] * 2 + ["passed"] * 2  # type: ignore[attr-defined]
    assert (report["first_bad"], report["first_good"]) == ("vllm==0.26.0", "vllm==0.28.0")
    shown = capsys.readouterr().out
    assert "first bad   vllm==0.26.0, or an earlier one" in shown
    assert "first good  vllm==0.28.0" in shown


def test_where_the_oldest_cannot_run_it_the_beginning_is_not_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, report = bisect(tmp_path, HIT, "--targets", "vllm==0.31.0,vllm==0.32.0")
    assert (status, report["first_bad"], report["between"]) == (2, "vllm==0.32.0", ["vllm==0.31.0"])
    assert "or one of these, of which nothing can be said: vllm==0.31.0" in capsys.readouterr().out


def test_a_release_that_cannot_be_had_does_not_pass(tmp_path: Path) -> None:
    status, report = bisect(tmp_path, DRAFTER, "--targets", "vllm==0.28.0,vllm==99.0.0x")
    assert (status, report["between"]) == (2, ["vllm==99.0.0x"])


def test_a_gap_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = bisect(tmp_path, LIMIT, "--targets", "vllm==0.26.0,vllm==0.27.1,vllm==0.28.0")
    assert (status, [one["verdict"] for one in report["changes"]]) == (1, ["violated", "passed", "violated"])  # type: ignore[attr-defined]
    shown = capsys.readouterr().out
    assert "not shown from here: vllm==0.27.1" in shown
    assert "again from here: vllm==0.28.0" in shown


def test_a_violation_that_the_newest_shows(tmp_path: Path) -> None:
    status, report = bisect(tmp_path, FAILED_LOAD, "--targets", "vllm==0.28.0, vllm==0.29.0")
    assert (status, report["verdict"], report["first_bad"]) == (1, "violated", "vllm==0.28.0")


def test_the_commit_that_mends_is_found_and_one_that_does_not_load_is_told(
    tmp_path: Path, repo: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, commits = repo
    before = git(folder, "status", "--porcelain"), git(folder, "rev-parse", "HEAD")
    git(folder, "tag", "-f", "old", commits[0])
    inside = str(folder / "vllm")
    status, report = bisect(tmp_path, DRAFTER, "--repo", inside, "--good", commits[-1], "--bad", "old")
    assert (git(folder, "status", "--porcelain"), git(folder, "rev-parse", "HEAD")) == before
    assert (status, report["verdict"]) == (2, "undetermined")
    assert (report["first_good"], report["between"]) == (commits[5], [commits[4]])
    assert len(report["results"]) < len(commits)  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert f"{commits[5]} (the lookup is mended)" in shown
    assert f"violated  {commits[0]} (old)" in shown
    assert f"nothing can be said: {commits[4]}" in shown


def test_ends_that_are_not_what_was_said(tmp_path: Path, repo: tuple[Path, list[str]]) -> None:
    folder, commits = repo
    status, report = bisect(tmp_path, DRAFTER, "--repo", str(folder), "--good", commits[0], "--bad", commits[3])
    assert (status, report["verdict"], report["first_bad"]) == (2, "undetermined", commits[0])
    assert report["wrong"] == [f"--good {commits[0]} shows it"]


def test_commits_without_the_code_are_told_without_folders_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "-q")
    for name in ("notes.txt", "vllm/notes.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", name)
    assert run(["bisect", DRAFTER, "--repo", str(tmp_path), "--good", "HEAD~1", "--bad", "HEAD"]) == 2
    shown = capsys.readouterr().out
    assert "(HEAD~1): the commit has no folder vllm" in shown
    assert "(HEAD): the commit has no vllm/v1/core/sched/scheduler.py" in shown


def test_a_long_run_should_be_shrunk_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = read_run(Path(DRAFTER))
    for times, long in ((1, False), (20, True)):
        write_run(tmp_path / "run.json", msgspec.structs.replace(short, actions=short.actions * times))
        run(["bisect", str(tmp_path / "run.json"), "--targets", "vllm==0.27.1"])
        assert ("kvcheck shrink it first" in capsys.readouterr().out) == long


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--repo", ".", "--good", "a"), "--repo needs --good and --bad"),
        (("--targets", "vllm==0.30.0,vllm==0.28.0"), "vllm==0.30.0 stands before vllm==0.28.0"),
        (("--good", "a"), "are commits of a --repo"),
        (("--repo", "{repo}", "--good", "nosuch", "--bad", "HEAD"), "has no commit 'nosuch'"),
        (("--repo", "{tmp}", "--good", "a", "--bad", "b"), "not a git repository"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: tuple[str, ...],
    told: str,
    tmp_path: Path,
    repo: tuple[Path, list[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    filled = [argument.format(repo=repo[0], tmp=tmp_path) for argument in arguments]
    assert run(["bisect", DRAFTER, *filled]) == 3
    complaint = capsys.readouterr().err
    assert told in complaint
    assert complaint.count("\n") == 1
