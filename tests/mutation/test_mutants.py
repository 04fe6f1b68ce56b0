"""Entries find a function by its name and one place in it by its syntax, change only that, and go stale otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.mutants import (
    Edit,
    Mutant,
    Simulation,
    StaleEntryError,
    always,
    apply,
    drop,
    never,
    omit,
    patched,
    replace,
)

PATH = "sdk/headrace/log/replica.py"
CODE = '''"""A module."""

class Replica:
    def join(self, offset):
        # The comment stays.
        if (offset < max(self.high_watermark,
                         self.start_offset)  # as does this one
                or self.full):
            raise ValueError("naïve", offset)
        self.send([self.me(), *self.others])
        self.note()
        self.note()
        return f"{offset}" if any(each for each in self.others) else None

    def leave(self):
        self.note()
'''


def mutant(place: str, edit: Edit, *also: tuple[str, Edit]) -> Mutant:
    """Return an entry with these edits."""
    return Mutant("example", "H1", place, edit, "Nothing.", Simulation(1), also=also)


def edited(edit: Edit, place: str = "Replica.join", code: str = CODE) -> str:
    """Return the changed lines of `code` after one edit."""
    (text,) = patched(mutant(place, edit), {PATH: code}).values()
    return "\n".join(line.strip() for line in text.splitlines() if line not in code.splitlines())


@pytest.mark.parametrize(
    ("edit", "lines"),
    [
        (
            replace("max(self.high_watermark, self.start_offset)", "self.high_watermark"),
            "if (offset < self.high_watermark  # as does this one",
        ),
        (never("offset < max(self.high_watermark, self.start_offset)"), "if (False  # as does this one"),
        (always("self.full"), "or True):"),
        (replace("self.full", "a or b"), "or (a or b)):"),
        (omit("self.me()"), "self.send([*(), *self.others])"),
        (drop('raise ValueError("naïve", offset)'), "pass"),
        (drop("raise ValueError(...)"), "pass"),
        (drop("self.note()\nself.note()"), "pass"),
        (replace("self.send(...)", "self.send([])"), "self.send([])"),
        (replace("self.send(...)", "self.full = 1\nself.open = 2"), "self.full = 1\nself.open = 2"),
        (
            replace("any(each for each in self.others)", "True"),
            'return f"{offset}" if True else None',
        ),
        (
            replace("(each for each in self.others)", "self.others"),
            'return f"{offset}" if any(self.others) else None',
        ),
    ],
)
def test_an_edit_changes_one_place(edit: Edit, lines: str) -> None:
    """Line breaks, comments and brackets of the code are not compared, and what is around the place stays as it was."""
    assert edited(edit) == lines


def test_a_block_of_any_statements() -> None:
    """`...` as the only statement of a block matches all of its statements."""
    code = "def run(a):\n    if a:\n        b()\n        c()\n    d()\n"
    assert edited(drop("if a: ..."), "run", code) == "pass"


@pytest.mark.parametrize(
    ("place", "edit", "message"),
    [
        ("Replica.lead", drop("self.note()"), "Replica.lead is defined 0 times"),
        ("storage:Replica.leave", drop("self.note()"), "is defined 0 times"),
        ("Replica.join", drop("self.note()"), "Replica.join has 2 places with\nself.note()\nin\ndef join"),
        ("Replica.leave", drop("self.send(1)"), "Replica.leave has 0 places with\nself.send(1)\nin\ndef leave"),
        ("Replica.leave", replace("self.note()", "self . note()"), "is not changed by its edit"),
        ("Replica.leave", replace("self.note()", "self.note("), "is not Python"),
        ("Replica.join", never("offset"), "has 2 places"),
        ("Replica.join", replace("self.note()\nself.note()", "break"), "is not Python"),
    ],
)
def test_a_stale_entry_is_refused(place: str, edit: Edit, message: str) -> None:
    """A place or a pattern that is not there exactly once is an error with the function and what was searched."""
    with pytest.raises(StaleEntryError, match=f"^example: {place} ") as refused:
        patched(mutant(place, edit), {PATH: CODE})
    assert message in str(refused.value)


def test_a_name_of_two_modules_needs_the_module() -> None:
    """The module's last name is enough."""
    sources = {"sdk/headrace/log/one.py": "def run():\n    a()\n", "sdk/headrace/log/two.py": "def run():\n    b()\n"}
    with pytest.raises(StaleEntryError, match=r"defined 2 times: .*/one\.py, .*/two\.py"):
        patched(mutant("run", drop("a()")), sources)
    assert patched(mutant("log.two:run", drop("b()")), sources) == {"sdk/headrace/log/two.py": "def run():\n    pass\n"}


def test_edits_add_up(tmp_path: Path) -> None:
    """An entry may edit several places of one module, and other modules; linked copies of a file are not changed."""
    for name, code in (("one", "def first():\n    a()\n    b()\n"), ("two", "def second():\n    c()\n")):
        path = tmp_path / "sdk/headrace" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, "utf-8")
        (tmp_path / f"{name}.link").hardlink_to(path)
    apply(mutant("first", drop("a()"), ("first", drop("b()")), ("second", replace("c()", "d()"))), tmp_path)
    assert (tmp_path / "sdk/headrace/one.py").read_text("utf-8") == "def first():\n    pass\n    pass\n"
    assert (tmp_path / "sdk/headrace/two.py").read_text("utf-8") == "def second():\n    d()\n"
    assert (tmp_path / "one.link").read_text("utf-8") == "def first():\n    a()\n    b()\n"
