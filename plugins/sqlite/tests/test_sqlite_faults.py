"""What goes wrong with a file, and what the user is told."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pytest

from redelivery.contract.broker import Settled
from redelivery.contract.message import Batch, Message
from redelivery.contract.spec import DeliverySpec, Sink
from redelivery.errors import Ambiguous, BrokerError, Fatal, Retriable
from redelivery.registry import connect
from redelivery_sqlite.client.store import Store
from redelivery_sqlite.errors import BY_CLASS, BY_CODE, TABLE, commit_error

QUIET = {"sqlite.reserve": "0", "sqlite.busy_timeout": "0.2"}
#: Result codes that are no errors: they never come as an exception.
NO_ERRORS = ("SQLITE_OK", "SQLITE_NOTICE", "SQLITE_WARNING", "SQLITE_ROW", "SQLITE_DONE")
#: Constants of the module that are no result codes, by their numbers' purpose: authorizer actions and answers, limits.
NO_RESULTS = tuple(f"SQLITE_{name}_" for name in ("LIMIT", "CREATE", "DROP", "ALTER", "DBCONFIG"))
ACTIONS = {
    "SQLITE_" + name
    for name in (
        *("ANALYZE", "ATTACH", "DELETE", "DETACH", "FUNCTION", "INSERT", "PRAGMA", "READ", "RECURSIVE", "REINDEX"),
        *("SAVEPOINT", "SELECT", "TRANSACTION", "UPDATE", "DENY", "IGNORE"),
    )
}


def send(url: str, *messages: Message, **options: str) -> Settled:
    with connect(url, {**QUIET, **{f"sqlite.{name}": value for name, value in options.items()}}).sender() as sender:
        sender.send(Batch.of(messages), deadline=time.monotonic() + 10)
        return sender.collect(0)[0]


def values(url: str) -> list[bytes | None]:
    with connect(url, QUIET).dead_letters(direct=True) as letters:
        return [letter.message.value for letter in letters.browse()]


def codes() -> dict[str, int]:
    names = [name for name in dir(sqlite3) if name.startswith("SQLITE_") and not name.startswith(NO_RESULTS)]
    return {name: getattr(sqlite3, name) for name in names if name not in ACTIONS}


def test_sqlite_every_result_code_of_the_library_is_mapped():
    unmapped = {name for name, code in codes().items() if code & 0xFF not in BY_CODE}
    assert all(name.startswith(NO_ERRORS) for name in unmapped)
    assert len(codes()) > 90


@pytest.mark.parametrize("name", sorted(codes()))
def test_sqlite_a_mapped_error_says_its_name_and_what_to_do(name):
    error = sqlite3.OperationalError("the library's own words")
    error.sqlite_errorcode, error.sqlite_errorname = codes()[name], name  # type: ignore[attr-defined]
    found = TABLE.error(error, "storing")
    assert found.native_code == name
    assert "the library's own words" in str(found)
    assert isinstance(found, BrokerError)
    expected = {"SQLITE_BUSY": Retriable, "SQLITE_FULL": Retriable, "SQLITE_CORRUPT": Fatal, "SQLITE_READONLY": Fatal}
    assert isinstance(found, expected.get(name.removesuffix("_SNAPSHOT"), BrokerError))


def test_sqlite_every_exception_class_of_the_module_is_mapped():
    classes = {kind for kind in vars(sqlite3).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert classes == {kind for kind in BY_CLASS if kind.__module__ == "sqlite3"}
    for kind in classes:
        assert isinstance(TABLE.error(kind("words"), "storing"), BrokerError)


def test_sqlite_only_a_disk_failing_in_the_commit_is_ambiguous():
    for name, code in codes().items():
        error = sqlite3.OperationalError("words")
        error.sqlite_errorcode, error.sqlite_errorname = code, name  # type: ignore[attr-defined]
        unknown = code & 0xFF == sqlite3.SQLITE_IOERR and TABLE.error(error, "storing").kind != "fatal"
        assert isinstance(commit_error(error, "storing"), Ambiguous) == unknown


def test_sqlite_a_missing_folder_is_fatal(tmp_path):
    with pytest.raises(Fatal, match="its folder is missing; make it"):
        send(f"sqlite://{tmp_path}/no/q.db", Message(value=b""))


def test_sqlite_a_folder_in_place_of_a_file_is_fatal(tmp_path):
    with pytest.raises(Fatal, match="this is a folder; name a file in it"):
        send(f"sqlite://{tmp_path}", Message(value=b""))


def test_sqlite_a_file_that_is_no_database_is_fatal_and_left_as_it_was(tmp_path):
    path = tmp_path / "q.db"
    path.write_bytes(b"no database " * 1000)
    with pytest.raises(Fatal, match=r"not an SQLite database: check the URL's path") as caught:
        send(f"sqlite://{path}", Message(value=b""))
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)
    assert path.read_bytes() == b"no database " * 1000


def test_sqlite_another_programs_database_is_fatal_and_left_as_it_was(tmp_path):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE users (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(Fatal, match="another program's database; name another file"):
        send(f"sqlite://{path}", Message(value=b""))
    assert path.read_bytes() == before


def test_sqlite_a_newer_schema_is_fatal(tmp_path):
    url = f"sqlite://{tmp_path}/q.db"
    send(url, Message(value=b""))
    other = sqlite3.connect(tmp_path / "q.db")
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(Fatal, match=r"schema has version 99.*install the version that wrote it"):
        send(url, Message(value=b""))


def _as_of_version_2(path):
    """Make the file what the version without identities wrote."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        for (number,) in other.execute("SELECT number FROM queue").fetchall():
            other.execute(f"DROP INDEX message_{number}_identity")
            other.execute(f"ALTER TABLE message_{number} DROP COLUMN identity")
            text = f"CREATE UNIQUE INDEX message_{number}_id ON message_{number} (id) WHERE id IS NOT NULL"
            other.execute(text)
        other.execute("PRAGMA user_version = 2")


def test_sqlite_a_file_without_identities_is_brought_up_to_date_and_keeps_what_it_knows(tmp_path):
    url = f"sqlite://{tmp_path}/q.db?queue=a"
    with connect(url, QUIET).admin() as admin:
        admin.provision(DeliverySpec())
    send(url, Message(value=b"1", id="i"), Message(value=b"2"))
    _as_of_version_2(tmp_path / "q.db")
    assert send(url, Message(value=b"1", id="i"), Message(value=b"3", id="i", identity="other")).duplicates == 1
    with connect(url, QUIET).dead_letters(direct=True) as letters:
        assert [each.message.value for each in letters.browse()] == [b"1", b"2", b"3"]
    with connect(url, QUIET).admin() as admin:
        assert not admin.plan(DeliverySpec()).drift, "a file brought up to date differs from one made anew"


def test_sqlite_a_file_without_identities_can_be_provisioned_and_a_plan_leaves_it_as_it_is(tmp_path):
    url = f"sqlite://{tmp_path}/q.db?queue=a"
    with connect(url, QUIET).admin() as admin:
        admin.provision(DeliverySpec())
        _as_of_version_2(tmp_path / "q.db")
    with connect(url, QUIET).admin() as admin:
        named = [str(each) for item in admin.plan(DeliverySpec()).objects for each in item.differences]
        assert "user_version is '2', not '3'" in named
        admin.provision(DeliverySpec())
        assert not admin.plan(DeliverySpec()).drift


def test_sqlite_a_damaged_file_is_fatal(tmp_path):
    path = tmp_path / "q.db"
    send(f"sqlite://{path}", *[Message(value=b"x" * 500, id=str(i)) for i in range(2000)])
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(b"\xa5" * (path.stat().st_size - 8192))
    with pytest.raises(Fatal, match=r"damaged: stop its users.*recover"):
        send(f"sqlite://{path}", Message(value=b"", id="new"))


def said_as_nobody(url: str) -> str:
    """The error that a sender raises for a user without rights: root may write anywhere, so a child gives that up."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            send(url, Message(value=b""))
        except Exception as error:  # noqa: BLE001 - told to the parent
            os.write(writing, f"{type(error).__name__} {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def test_sqlite_a_write_protected_folder_or_file_is_fatal():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555)
        said = said_as_nobody(f"sqlite://{folder}/new.db")
        assert said.startswith("Fatal"), said
        assert "check the URL's path and the folder's permissions" in said
        folder.chmod(0o755)
        send(f"sqlite://{folder}/q.db", Message(value=b""))
        for path in folder.iterdir():
            path.chmod(0o444)
        folder.chmod(0o555)
        said = said_as_nobody(f"sqlite://{folder}/q.db")
        assert said.startswith("Fatal"), said
        assert "read and write permission" in said
        folder.chmod(0o755)


def test_sqlite_a_folder_that_cannot_be_looked_into_is_not_a_missing_one(tmp_path):
    with pytest.raises(Fatal, match="File name too long"):
        send(f"sqlite://{tmp_path / ('x' * 300)}/q.db", Message(value=b""))


def test_sqlite_a_locked_file_is_retriable_within_the_busy_timeout_and_free_again_after(tmp_path):
    url = f"sqlite://{tmp_path}/q.db"
    send(url, Message(value=b"1"))
    holder = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(Retriable, match=r"SQLITE_BUSY.*another process holds the write lock; nothing was stored"):
        send(url, Message(value=b"2"))
    assert 0.1 < time.monotonic() - began < 2
    holder.execute("COMMIT")
    holder.close()
    send(url, Message(value=b"3"))
    assert values(url) == [b"1", b"3"]


def test_sqlite_the_wait_for_a_lock_never_passes_the_deadline(tmp_path):
    url = f"sqlite://{tmp_path}/q.db"
    send(url, Message(value=b"1"))
    holder = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with (
        connect(url, {"sqlite.reserve": "0", "sqlite.busy_timeout": "60"}).sender() as sender,
        pytest.raises(Retriable),
    ):
        sender.send(Batch.of([Message(value=b"2")]), deadline=began + 0.3)
    assert time.monotonic() - began < 2
    holder.close()


WRITER = """
import os, sys, time
from redelivery.registry import connect
from redelivery.contract.message import Batch, Message
with connect(sys.argv[1], {"sqlite.reserve": "0"}).sender() as sender:
    sender.send(Batch.of([Message(value=b"stored")]), deadline=time.monotonic() + 9)
    insert = sender._insert
    def hang(*args):
        insert(*args)
        print("inside", flush=True)
        time.sleep(60)
    sender._insert = hang
    sender.send(Batch.of([Message(value=b"half") for _ in range(5000)]), deadline=time.monotonic() + 90)
"""


def test_sqlite_a_writer_killed_within_its_transaction_leaves_nothing_half_stored(tmp_path):
    url = f"sqlite://{tmp_path}/q.db"
    with subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"inside\n"
        writer.send_signal(signal.SIGKILL)
    send(url, Message(value=b"after"))
    assert values(url) == [b"stored", b"after"]


def test_sqlite_many_processes_may_make_the_file_and_write_at_once(tmp_path):
    code = (
        "import sys, time; from redelivery.registry import connect\n"
        "from redelivery.contract.message import Batch, Message\n"
        "s = connect(sys.argv[1], {'sqlite.reserve': '100000'}).sender()\n"
        "for n in range(5): s.send(Batch.of([Message(value=b'x', id=f'{sys.argv[2]}-{n}-{i}') for i in range(200)]),"
        " deadline=time.monotonic() + 20)"
    )
    url = f"sqlite://{tmp_path}/q.db"
    writers = [
        subprocess.Popen([sys.executable, "-c", code, url, str(i)], stderr=subprocess.PIPE, text=True) for i in range(4)
    ]
    errors = [writer.communicate(timeout=60)[1] for writer in writers]
    assert errors == [""] * 4
    assert len(values(url)) == 4 * 5 * 200


def test_sqlite_a_full_file_is_retriable_stores_nothing_and_can_still_be_drained(tmp_path):
    url = f"sqlite://{tmp_path}/q.db"
    broker = connect(url, QUIET)
    with broker.sender() as sender:
        sender.send(Batch.of([Message(value=b"1")]), deadline=time.monotonic() + 9)
        connection = sender._store.connection()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages + 4}")
        full = Batch.of([Message(value=b"x" * 4000, id=str(i)) for i in range(100)])
        with pytest.raises(Retriable, match=r"full.*SQLITE_FULL.*rolled back; make room on the disk"):
            sender.send(full, deadline=time.monotonic() + 9)
        sender.send(Batch.of([Message(value=b"2")]), deadline=time.monotonic() + 9)
    assert values(url) == [b"1", b"2"]
    with broker.dead_letters(direct=True) as letters:
        assert letters.purge() == 2


def test_sqlite_the_reserve_grows_with_the_file_up_to_its_bound_and_is_renewed_after_it_was_given_up(tmp_path):
    url, reserve = f"sqlite://{tmp_path}/q.db", tmp_path / "q.db-reserve"
    with connect(url, {"sqlite.reserve": str(3 << 20)}).sender() as sender:
        sizes = []
        for n in range(8):
            sender.send(Batch.of([Message(value=b"x" * 1_000_000)]), deadline=time.monotonic() + 9)
            sizes.append(reserve.stat().st_size >> 20)
            if n == 6:
                reserve.unlink()
    assert sizes == [1, 2, 3, 3, 3, 3, 3, 3]


def mounted(folder: Path, megabytes: int) -> bool:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        return subprocess.run(mount, capture_output=True, timeout=10, check=False).returncode == 0
    except OSError:
        return False


def test_sqlite_a_queue_on_a_full_disk_can_be_drained(tmp_path):
    folder = tmp_path / "small"
    if not mounted(folder, 48):
        pytest.skip("needs the right to mount a small tmpfs (root); the same with a page limit is tested above")
    try:
        url = f"sqlite://{folder}/q.db"
        broker = connect(url, {"sqlite.reserve": str(12 << 20)})
        count = 0
        with broker.sender() as sender, pytest.raises(Retriable, match=r"SQLITE_FULL|no room left"):
            while True:
                batch = Batch.of([Message(value=b"x" * 1000, id=f"{count}-{i}") for i in range(1000)])
                sender.send(batch, deadline=time.monotonic() + 9)
                count += 1
        assert count > 5
        with (folder / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
            while filler.write(b"0" * 4096) == 4096:
                pass
        with broker.dead_letters(direct=True) as letters:
            assert letters.purge() == count * 1000
        (folder / "filler").unlink()
        send(url, Message(value=b"again"))
        assert values(url) == [b"again"]
    finally:
        subprocess.run(["umount", str(folder)], capture_output=True, timeout=10, check=True)


def test_sqlite_what_fails_in_the_commit_is_ambiguous_and_the_sender_recovers(tmp_path):
    url = f"sqlite://{tmp_path}/q.db"

    class Failing(sqlite3.Connection):
        def execute(self, sql, *args):  # type: ignore[override]
            if sql == "COMMIT":
                super().execute("ROLLBACK")
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"
                raise error
            return super().execute(sql, *args)

    send(url, Message(value=b"1"))
    with connect(url, QUIET).sender() as sender:
        real = sqlite3.connect
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sqlite3, "connect", lambda *a, **k: real(*a, **k, factory=Failing))
            with pytest.raises(Ambiguous, match="may be stored or not"):
                sender.send(Batch.of([Message(value=b"2")]), deadline=time.monotonic() + 9)
        sender.send(Batch.of([Message(value=b"2")]), deadline=time.monotonic() + 9)
    assert values(url) == [b"1", b"2"]


def test_sqlite_looking_into_a_missing_file_is_fatal_and_makes_none(tmp_path):
    broker = connect(f"sqlite://{tmp_path}/typo.db", QUIET)
    with broker.dead_letters() as letters:
        with pytest.raises(Fatal, match="no such file; correct the URL"):
            list(letters.browse())
        with pytest.raises(Fatal, match="no such file"):
            letters.purge()
    with (
        broker.admin() as admin,
        pytest.raises(Fatal, match="or make it: redelivery apply"),
    ):
        admin.depth()
    assert not list(tmp_path.iterdir())


def test_sqlite_provisioning_is_idempotent_and_a_plan_only_reads(tmp_path):
    broker = connect(f"sqlite://{tmp_path}/q.db?queue=a", QUIET)
    with broker.admin() as admin:
        spec = DeliverySpec(dead_letter_sink=(Sink(uri="native"),))
        plan = admin.plan(spec)
        assert [(item.kind, item.name, item.action) for item in plan.objects][1:] == [
            ("queue", "a", "create"),
            ("queue", "a-dead-letters", "create"),
        ]
        assert plan.drift
        assert not list(tmp_path.iterdir())
        for _ in range(2):
            assert admin.provision(spec).dead_letter_sink_uri == broker.native_sink()
            assert not admin.plan(spec).drift
        assert admin.depth() == 0


def test_sqlite_drift_is_named_and_not_mended(tmp_path):
    broker = connect(f"sqlite://{tmp_path}/q.db?queue=a", QUIET)
    with broker.admin() as admin:
        admin.provision(DeliverySpec())
    other = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
    other.execute("DROP INDEX message_1_identity")
    other.execute("PRAGMA journal_mode = DELETE")
    other.close()
    with broker.admin() as admin:
        names = {each.attribute for item in admin.plan(DeliverySpec()).objects for each in item.differences}
        assert names == {"message_1_identity", "journal_mode"}
        with pytest.raises(Fatal, match=r"journal_mode is 'delete', not 'wal'.*message_1_identity is 'missing'"):
            admin.provision(DeliverySpec())


def check(url: str, **options: str) -> None:
    with connect(url, {**QUIET, **{f"sqlite.{name}": value for name, value in options.items()}}).sender() as sender:
        sender.check(deadline=time.monotonic() + 1)


def test_sqlite_a_check_makes_no_file(tmp_path):
    check(f"sqlite://{tmp_path}/q.db")
    assert not list(tmp_path.iterdir())


def test_sqlite_a_check_says_what_the_first_row_would_meet(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.db").write_text("this is no database, whatever its name says of it")
    with connect(f"sqlite://{tmp_path}/other.db?queue=other").sender() as sender:
        sender.send(Batch.of([Message(value=b"v")]), deadline=time.monotonic() + 5)
    for path, options, said in (
        ("missing/q.db", {}, "its folder is missing"),
        ("folder", {}, "this is a folder"),
        ("q.db", {"create": "false"}, "there is no such file"),
        ("other.db", {"create": "false"}, "there is no queue 'default' in .* provision it, or correct the URL"),
        ("text.db", {}, "not an SQLite database"),
    ):
        with pytest.raises(Fatal, match=said):
            check(f"sqlite://{tmp_path}/{path}", **options)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(Fatal, match=f"{tmp_path} may not be written to; give this user read and write permission"):
        check(f"sqlite://{tmp_path}/q.db")


@pytest.mark.skipif(sys.platform == "win32", reason="limits of a process are POSIX's")
def test_sqlite_a_limit_on_file_sizes_is_not_told_as_a_missing_permission(tmp_path):
    script = (
        "import resource, sys, time\n"
        "from redelivery.contract.message import Batch, Message\n"
        "from redelivery.registry import connect\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, 1 << 19))\n"
        "with connect(sys.argv[1], {}).sender() as sender:\n"
        "    sender.send(Batch.of([Message(value=b'v')]), deadline=time.monotonic() + 10)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, f"sqlite://{tmp_path}/q.db"], capture_output=True, text=True, check=False
    )
    last = result.stderr.strip().splitlines()[-1]
    assert "redelivery.errors.Fatal: sqlite: storing in" in last
    assert "no file may be so large here: raise the limit (ulimit -f), or remove messages" in last
    assert "permission" not in last


def test_a_reserve_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"untouched")
    (tmp_path / "orders.db-reserve").symlink_to(victim)
    url = f"sqlite:{tmp_path / 'orders.db'}?queue=orders"
    with connect(url).sender() as sender, pytest.raises(Fatal, match=r"symbolic links \(ELOOP\); remove the link"):
        sender.send(Batch.of([Message(value=b"v")]), deadline=time.monotonic() + 5)
    assert victim.read_bytes() == b"untouched"


def test_a_link_that_leads_nowhere_is_not_followed_to_make_a_file(tmp_path: Path) -> None:
    (tmp_path / "orders.db").symlink_to(tmp_path / "elsewhere.db")
    with (
        connect(f"sqlite:{tmp_path / 'orders.db'}?queue=orders").sender() as sender,
        pytest.raises(Fatal, match="link"),
    ):
        sender.send(Batch.of([Message(value=b"v")]), deadline=time.monotonic() + 5)
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("path", ["x" * 300, f"{'x' * 300}/q.db"], ids=["file", "folder"])
def test_sqlite_a_path_that_the_system_refuses_is_told_by_every_role(tmp_path: Path, path: str) -> None:
    """As one that this user may not look into is."""
    url = f"sqlite:{tmp_path}/{path}?queue=orders"
    broker = connect(url, QUIET)
    with pytest.raises(Fatal):
        check(url)
    with pytest.raises(Fatal):
        send(url, Message(value=b"v"))
    with pytest.raises(Fatal), broker.receiver() as receiver:
        receiver.receive(1, wait=0)
    with pytest.raises(Fatal):
        values(url)
    with broker.admin() as admin:
        for ask in (admin.depth, lambda: admin.provision(DeliverySpec())):
            with pytest.raises(Fatal):
                ask()


def test_sqlite_a_folder_that_may_not_be_looked_into_is_fatal() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "closed")
        folder.mkdir(mode=0o700 if os.geteuid() == 0 else 0)
        Path(name).chmod(0o755)
        for path in (folder / "q.db", folder / "deep" / "q.db"):
            said = said_as_nobody(f"sqlite://{path}")
            assert said.startswith("Fatal sqlite: "), said
            assert "give this user read and write permission" in said
        folder.chmod(0o700)


def test_sqlite_a_file_that_is_removed_while_it_is_opened_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = Store._prepare

    def removing(self: Store, connection: sqlite3.Connection, doing: str) -> None:
        prepare(self, connection, doing)
        connection.execute("SELECT count(*) FROM queue").fetchall()  # from here on its log is open too
        self.path.unlink()

    monkeypatch.setattr(Store, "_prepare", removing)
    with pytest.raises(Fatal, match="removed or replaced"):
        send(f"sqlite://{tmp_path}/q.db", Message(value=b"v"))


def test_sqlite_a_folder_that_is_replaced_by_a_file_under_an_open_sender_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with connect(f"sqlite://{folder}/q.db", QUIET).sender() as sender:
        sender.send(Batch.of([Message(value=b"v")]), deadline=time.monotonic() + 10)
        folder.rename(tmp_path / "away")
        folder.touch()
        with pytest.raises(Fatal, match="removed or replaced"):
            sender.send(Batch.of([Message(value=b"w")]), deadline=time.monotonic() + 10)


def test_sqlite_an_empty_file_is_one_that_is_still_to_be_made(tmp_path: Path) -> None:
    """Somebody's who made it with rights of their choice, or what a process left that was killed as it began."""
    path = tmp_path / "q.db"
    path.touch(mode=0o640)
    url = f"sqlite://{path}?queue=orders"
    with pytest.raises(Fatal, match="no such file"):
        values(url)
    assert path.stat().st_size == 0
    with connect(url, QUIET).admin() as admin:
        admin.provision(DeliverySpec())
        assert not admin.plan(DeliverySpec()).drift
    assert path.stat().st_mode & 0o777 == 0o640
