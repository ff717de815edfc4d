"""`kvcheck export` as it is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from releases import release

from kvcheck.cli import export_tests
from kvcheck.cli.commands.export import FORMATS
from kvcheck.cli.main import run
from kvcheck.files import name_of

ROOT = Path(__file__).parents[2]
WINDOW = str(ROOT / "counterexamples/eagle-window-run-too-short")
DRAFTER = str(ROOT / "counterexamples/window-drafter-lookup-assertion")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that is said when nothing can be exported."""
    assert run(["export", *arguments]) == 3
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert list(Path().iterdir()) == []
    return said.err


def test_a_test_that_uses_kvcheck(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", WINDOW, "--to", "pytest", "--target", "model@0.28.0"]) == 0
    file = Path("test_kvcheck_eagle_window_run_too_short.py")
    assert f"{file}: hits.complete" in capsys.readouterr().out
    assert "def test_eagle_window_run_too_short" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("form", "name", "part"),
    [
        ("pytest", "test_kvcheck_eagle_window_run_too_short.py", "def test_eagle"),
        ("html", "eagle_window_run_too_short.html", "hits.complete"),
    ],
)
def test_a_file_of_the_same_name_is_not_written_over(
    form: str, name: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ["export", WINDOW, "--to", form, "--target", "model@0.28.0"]
    file = Path(name)
    file.write_text("mine", encoding="utf-8")
    assert run(export) == 3
    assert f"{file} is there already and says something else: name a file with --out" in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "mine"
    assert run([*export, "--out", str(file)]) == 0
    assert part in file.read_text(encoding="utf-8")
    assert run(export) == 0


def test_stdout_has_the_test_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            ["export", WINDOW, "--to", "pytest", "--target", "model@0.28.0", "--out", "-", "--signature", "hits.repeat"]
        )
        == 0
    )
    said = capsys.readouterr()
    compile(said.out, "test.py", "exec")
    assert "violation  hits.repeat full+sliding_window schedule" in said.err
    assert list(Path().iterdir()) == []


def test_a_sound_target_gives_nothing_to_export(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, WINDOW, "--to", "pytest", "--target", "model")
    assert said.endswith("nothing to export from model: the run shows no violation\n")


def test_a_violation_that_the_run_does_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, WINDOW, "--to", "pytest", "--target", "model@0.28.0", "--signature", "hits.complete other")
    shown = [f"{claim} full+sliding_window schedule" for claim in ("hits.complete", "hits.repeat")]
    assert f"does not show 'hits.complete other', but {', '.join(shown)}" in said


def test_the_server_s_own_tests_run_on_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    said = complaint(capsys, WINDOW, "--to", "vllm-test", "--target", "model@0.28.0")
    assert "the server's own tests run on a release: name one with --target" in said


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'pdf' is not one of" in complaint(capsys, WINDOW, "--to", "pdf")
    assert "Missing option '--to'" in complaint(capsys, WINDOW)
    assert "cannot read nowhere" in complaint(capsys, "nowhere", "--to", "pytest")
    assert "cannot write" in complaint(capsys, WINDOW, "--to", "pytest", "--target", "model@0.28.0", "--out", WINDOW)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a-b/run.json", "a_b"),
        ("a.b/Run 1.json", "run_1"),
        ("é/run.json", "run"),
        ("1", "1"),
        ("found/trace.json", "found"),
        ("trace.json", "trace"),
    ],
)
def test_what_is_made_of_a_run_is_called_as_it(path: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "run.json").touch()
    file = tmp_path / path
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert name_of(file) == name


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_made_of_a_run_goes_to_the_current_folder(form: str) -> None:
    assert FORMATS[form].file_for(Path(WINDOW)).parent == Path()


@pytest.mark.release
def test_a_test_of_the_server_s_own_is_tried_before_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    release("0.27.1")
    assert run(["export", DRAFTER, "--to", "vllm-test", "--target", "vllm==0.27.1", "--out", "test_it.py"]) == 0
    assert "tried      it fails on vllm==0.27.1, as it should" in capsys.readouterr().out
    assert Path("test_it.py").is_file()


def test_tests_of_two_forms_have_two_names() -> None:
    assert len({form.file_for(Path(WINDOW)) for form in FORMATS.values()}) == len(FORMATS)


@pytest.mark.release
@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("def test_it():\n    pass\n", "the test passes there: what is broken does not show in what it asserts"),
        ("def test_it():\n    {}['x']\n", "the test fails for another reason: test_exported.py:2: KeyError: 'x'"),
        (
            "import pytest as p\ndef test_it():\n    p.skip('no')\n",
            "the test is skipped there: it cannot make the server",
        ),
        ("def test_it(\n", "the test cannot be run: "),
    ],
)
def test_one_that_shows_nothing_is_not_written(
    test: str, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    release("0.27.1")
    monkeypatch.setattr(export_tests, "vllm_test", lambda _found, _name: test)
    assert run(["export", DRAFTER, "--to", "vllm-test", "--target", "vllm==0.27.1"]) == 2
    assert f"undetermined: not exported: {reason}" in capsys.readouterr().out
    assert list(Path().iterdir()) == []
