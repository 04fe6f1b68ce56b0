"""docs/quickstart.md and the README's tour do what they say: their Python blocks run on a real cluster."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from headrace_devcluster.cluster import LocalCluster
from markdown_it import MarkdownIt

from tests.integration.on_directory import IS_ON

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "quickstart.md"


def _blocks(text: str) -> list[tuple[str, str, int]]:
    """(Python code, what it prints, line) for every Python block of the page."""
    fences = [token for token in MarkdownIt("commonmark").parse(text) if token.type == "fence"]
    blocks = []
    for fence, following in zip(fences, [*fences[1:], None], strict=True):
        if fence.info == "python":
            printed = following.content if following is not None and following.info == "text" else ""
            assert fence.map is not None
            blocks.append((fence.content, printed, fence.map[0] + 1))
    return blocks


def test_quickstart(headrace_cluster: LocalCluster, topic_name: str) -> None:
    """Each block, on a real cluster, prints the text below it."""
    blocks = _blocks(PAGE.read_text("utf-8"))
    assert len(blocks) >= 8
    names: dict[str, object] = {"__name__": "quickstart"}
    for code, expected, line in blocks:
        here = code.replace("localhost:7170", headrace_cluster.bootstrap_servers).replace('"visits"', f'"{topic_name}"')
        # Line numbers of a failure are those of the page.
        compiled = compile("\n" * line + here, str(PAGE), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compiled, names)
        if IS_ON:  # A directory keeps one copy.
            expected = expected.replace("with 3 replicas each", "with 1 replicas each")
        assert re.sub(re.escape(topic_name), "visits", printed.getvalue()) == expected, f"{PAGE.name}, line {line}"


def test_readme_tour_runs_again(
    headrace_cluster: LocalCluster, topic_name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tour's block runs twice in one cluster, which the environment names; the second time finds its topic."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP_SERVERS", headrace_cluster.bootstrap_servers)
    (code, _, _), _ = _blocks((ROOT / "README.md").read_text("utf-8"))
    for records in (100_001, 200_002):
        exec(code.replace('"clicks"', f'"{topic_name}"'), {"__name__": "readme"})
        assert f"\n{records}\n" in capsys.readouterr().out


def test_readme_directory_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The block without a server runs twice in one working directory."""
    monkeypatch.chdir(tmp_path)
    _, (code, _, _) = _blocks((ROOT / "README.md").read_text("utf-8"))
    for records in (1, 2):
        exec("import headrace\n" + code, {"__name__": "readme"})
        assert capsys.readouterr().out == f"{[b'first'] * records}\n"
