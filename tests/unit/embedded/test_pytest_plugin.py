"""The fixtures that pytest finds once headrace is installed."""

import textwrap

pytest_plugins = ["pytester"]


def test_each_test_has_a_directory_of_its_own(pytester):
    pytester.makepyfile(
        textwrap.dedent(
            """
            import headrace
            import pytest

            @pytest.mark.parametrize("turn", range(2))
            def test_mine(headrace_directory, turn):
                assert headrace_directory.topics() == []
                headrace_directory.admin.create_topic("clicks")
                with headrace.Producer(bootstrap_servers=headrace_directory.bootstrap_servers) as producer:
                    producer.send("clicks", b"1")
                assert [record.value for record in headrace_directory.reader("clicks")] == [b"1"]
            """
        )
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
