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


def test_the_tests_of_a_run_share_a_cluster(pytester, monkeypatch):
    """It needs no etcd: the fixture also works where no binary of it can be had."""
    monkeypatch.setenv("HEADRACE_ETCD", str(pytester.path / "missing"))
    pytester.makepyfile(
        textwrap.dedent(
            """
            import headrace
            import pytest

            @pytest.mark.parametrize("turn", range(2))
            def test_ours(headrace_cluster, turn):
                with headrace.Admin(bootstrap_servers=headrace_cluster.bootstrap_servers) as admin:
                    assert len(admin.list_topics()) == turn
                    admin.create_topic(f"clicks-{turn}")
            """
        )
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
