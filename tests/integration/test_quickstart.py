"""docs/quickstart.md does what it says: its Python blocks run one after the other and print what stands below them."""

import contextlib
import io
import re
from pathlib import Path

from headrace_devcluster.cluster import LocalCluster
from markdown_it import MarkdownIt

PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart.md"


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
        assert re.sub(re.escape(topic_name), "visits", printed.getvalue()) == expected, f"{PAGE.name}, line {line}"
